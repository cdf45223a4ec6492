# A checkpoint through the converter of a given build. A refusal is a record, and the job succeeds.


def conversion_inputs(wildcards):
    """Records of the checkpoint, the converter's source and the environment that it runs in."""
    converter = STUDY.converters[wildcards.converter]
    return {
        "checkpoint": f"{RECORDS}/sources/{wildcards.model}.json",
        "archive": f"{RECORDS}/sources/{wildcards.converter}.json",
        "environment": f"{RECORDS}/environments/{converter.environment}.json",
    }


rule convert:
    """
    convert_hf_to_gguf.py of one build on one checkpoint.

    Input: records of checkpoint, converter source, environment. Output: record with the outcome in the converter's own
    words; where it succeeds the GGUF lies in the cache.
    """
    input:
        unpack(conversion_inputs),
        script=script("convert"),
        modules=modules("convert", "records"),
    output:
        record=f"{RECORDS}/conversions/{{model}}/{{converter}}.json",
    log:
        "results/logs/convert-{model}-{converter}.log",
    shell:
        "{PYTHON:q} {input.script:q} --model {wildcards.model:q} --converter {wildcards.converter:q}"
        " --records {RECORDS:q} --cache {CACHE:q} --overrides {OVERRIDES:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

# A checkpoint through the converter of a given build. A refusal is a record, and the job succeeds.


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
    conda:
        "../../envs/pipeline.yaml"
    params:
        records=lambda wildcards: RECORDS,
    shell:
        "python {input.script:q} --model {wildcards.model:q} --converter {wildcards.converter:q}"
        " --records {params.records:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule retype:
    """
    A copy of a model with other token types, to test whether engines compare them.

    Input: record of the original. Output: record of the copy, which lies in the cache.
    """
    input:
        original=original_of,
        script=script("retype"),
        modules=modules("model_copies", "retype", "gguf_header"),
    output:
        record=f"{RECORDS}/retyped/{{model}}.json",
    log:
        "results/logs/retype-{model}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        records=lambda wildcards: RECORDS,
    shell:
        "python {input.script:q} --model {wildcards.model:q} --records {params.records:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule pad:
    """
    A copy of a model whose steps cost more and whose text stays the same: the target of a positive control.

    Input: record of the original. Output: record of the copy, which lies in the cache. Artificial by construction.
    """
    input:
        original=original_of,
        script=script("pad"),
        modules=modules("model_copies", "padding"),
    output:
        record=f"{RECORDS}/padded/{{model}}.json",
    log:
        "results/logs/pad-{model}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        records=lambda wildcards: RECORDS,
        entry=lambda wildcards: digest(STUDY.models[wildcards.model]),
    shell:
        "python {input.script:q} --model {wildcards.model:q} --records {params.records:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

# What the headers say before anything is loaded: facts of each model, and a prediction for each pair.


rule facts:
    """
    The GGUF header of one model: architecture, vocabulary, sizes.

    Input: the record that says where the bytes are. Output: record with the facts.
    """
    input:
        source=lambda wildcards: f"{RECORDS}/{plan.model_record(STUDY, wildcards.model)}",
        script=script("facts"),
        modules=modules("gguf_header", "vocabulary", "model_facts", "engine_rules"),
    output:
        record=f"{RECORDS}/facts/{{model}}.json",
    log:
        "results/logs/facts-{model}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        host=HOST,
    shell:
        "python {input.script:q} --source {input.source:q} --host {params.host:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule precheck:
    """
    The prediction for one pair on one build, written before the pair is loaded.

    Input: records of both models. Output: record with the prediction and its reasons.
    """
    input:
        pair=pair_facts,
        script=script("predict"),
        modules=modules(
            "gguf_header",
            "vocabulary",
            "memory_plan",
            "precheck",
            "engine_rules",
            "loadability",
            "split_files",
            "mtp",
            "payoff",
            "model_facts",
        ),
        rules=str(SCRIPTS / "findings" / "engine_rules.json"),
    output:
        record="results/records/{host}/precheck/{attempt}/{engine}/{arm}.json",
    log:
        "results/logs/precheck-{host}-{attempt}-{engine}-{arm}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        records=lambda wildcards: records_on(wildcards.host),
        shared=RECORDS,
    shell:
        "python {input.script:q} --attempt {wildcards.attempt:q} --engine {wildcards.engine:q}"
        " --arm {wildcards.arm:q} --records {params.records:q} --shared {params.shared:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

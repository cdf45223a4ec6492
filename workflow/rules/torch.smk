# PyTorch builds: which GPU architectures they carry.


rule torch_probe:
    """
    Ask one PyTorch build for its architectures, its CUDA toolkit and channel.

    Input: record of its environment. Output: record of the answer.
    """
    input:
        environment=lambda wildcards: (
            f"{RECORDS}/environments/{STUDY.torch_wheels[wildcards.wheel].environment}.json"
            if STUDY.torch_wheels[wildcards.wheel].environment
            else []
        ),
        script=script("torch_probe"),
        modules=modules("torch_probe"),
    output:
        record=f"{RECORDS}/torch/{{wheel}}.json",
    log:
        "results/logs/torch-{wheel}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        records=lambda wildcards: RECORDS,
    shell:
        "python {input.script:q} --wheel {wildcards.wheel:q} --records {params.records:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

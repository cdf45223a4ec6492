# PyTorch builds: which GPU architectures they carry.


rule torch_probe:
    """
    Ask one PyTorch build for its architectures, its CUDA toolkit and channel.

    Input: record of its environment, where it is installed here; else its wheel is read where it lies. Output: record of the answer.
    """
    input:
        environment=lambda wildcards: (
            f"{RECORDS}/environments/{STUDY.torch_wheels[wildcards.wheel].environment}.json"
            if STUDY.torch_wheels[wildcards.wheel].environment
            else []
        ),
        script=script("torch_probe"),
        modules=modules("torch_probe", "index_wheel"),
    output:
        record=f"{RECORDS}/torch/{{wheel}}.json",
    log:
        "results/logs/torch-{wheel}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        network=1,
    params:
        records=lambda wildcards: RECORDS,
        entry=lambda wildcards: digest(STUDY.torch_wheels[wildcards.wheel]),
    shell:
        "python {input.script:q} --wheel {wildcards.wheel:q} --records {params.records:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

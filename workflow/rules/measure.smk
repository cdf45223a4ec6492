# Engines: what a build offers (probe), whether a pair loads and drafts (load), and blocks of arms (measure).


rule probe:
    """
    Ask an engine what it is and what it offers: build, speculation types, defaults, devices.

    Input: record of its environment. Output: record of the probe.
    """
    input:
        environments=engine_environments,
        script=script("probe"),
        modules=modules("engine/probe"),
        code_there=code_there,
    output:
        record="results/records/{host}/probes/{engine}.json",
    log:
        "results/logs/probe-{host}-{engine}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        **FOR_A_LOOK,
    params:
        records=lambda wildcards: records_on(wildcards.host),
        shared=RECORDS,
        entry=lambda wildcards: digest(STUDY.engines[wildcards.engine]),
        there=lambda wildcards: there(wildcards.host, wildcards.engine),
    shell:
        "python {input.script:q} --engine {wildcards.engine:q} --records {params.records:q} --shared {params.shared:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule load:
    """
    Start one arm once on one engine, ask one short request per prompt class, stop: does it load, does it draft?

    Input: records of models, environment, probe, prediction. Output: record of the load.
    """
    input:
        host="results/records/{host}/host.json",
        environments=engine_environments,
        probe=engine_probes,
        models=arm_inputs,
        script=script("load"),
        modules=modules("arm_runner", "engine/arms", "engine/client", "engine/drivers", "engine/serving"),
        code_there=code_there,
    output:
        record="results/records/{host}/loads/{attempt}/{engine}/{arm}.json",
    log:
        "results/logs/load-{host}-{attempt}-{engine}-{arm}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: measuring_threads
    resources:
        **ONE_AT_A_TIME,
        **FOR_A_LOAD,
    params:
        records=lambda wildcards: records_on(wildcards.host),
        shared=RECORDS,
        entry=lambda wildcards: digest(
            STUDY.attempts[wildcards.attempt].arm(wildcards.arm),
            STUDY.study.roles_of(wildcards.attempt),
            STUDY.study.protocol_of(wildcards.attempt).load_predict_tokens,
        ),
    shell:
        "python {input.script:q} --attempt {wildcards.attempt:q} --engine {wildcards.engine:q}"
        " --arm {wildcards.arm:q} --records {params.records:q} --shared {params.shared:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule measure:
    """
    Blocks of arms, each in a fresh engine process, until the verdict is settled or the maximum is reached.

    Input: records of models, environments, probes, predictions. Output: record of the session; every block is a record
    of its own beside it, written when it ends, so an interrupted session goes on where it stopped. Nothing of the
    workflow runs on a machine beside a measurement.
    """
    input:
        host="results/records/{host}/host.json",
        environments=engine_environments,
        probe=engine_probes,
        models=session_inputs,
        script=script("measure"),
        modules=modules(
            "arm_runner",
            "measure",
            "costs",
            "session",
            "blocks",
            "gates",
            "machine",
            "design",
            "inference",
            "engine/arms",
            "engine/client",
            "engine/drivers",
            "engine/serving",
        ),
        code_there=code_there,
    output:
        record="results/records/{host}/measure/{attempt}/{engine}/session.json",
    log:
        "results/logs/measure-{host}-{attempt}-{engine}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: measuring_threads
    resources:
        **ONE_AT_A_TIME,
        **FOR_A_SESSION,
    params:
        records=lambda wildcards: records_on(wildcards.host),
        shared=RECORDS,
        entry=lambda wildcards: digest(
            STUDY.arms_of(wildcards.attempt),
            STUDY.study.roles_of(wildcards.attempt),
            STUDY.study.protocol_of(wildcards.attempt),
        ),
    shell:
        "python {input.script:q} --attempt {wildcards.attempt:q} --engine {wildcards.engine:q}"
        " --records {params.records:q} --shared {params.shared:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

# Engines: what a build offers (probe), whether a pair loads and drafts (load), and blocks of arms (measure).


def engine_environments(wildcards):
    """Records of the environments of the engines that a job starts."""
    attempt = wildcards.get("attempt")
    engines = (
        plan.engines_of_job(STUDY, attempt, wildcards.engine) if attempt else [STUDY.engines[wildcards.engine]]
    )
    return [f"{RECORDS}/{record}" for record in plan.environment_records(engines)]


def arm_inputs(wildcards):
    """Records of models and prediction for one arm on one engine."""
    arm = STUDY.attempts[wildcards.attempt].arm(wildcards.arm)
    models = plan.models_of_arms(STUDY, wildcards.attempt, [arm])
    inputs = [f"{RECORDS}/{plan.model_record(STUDY, model)}" for model in models]
    if arm in plan.paired_arms(STUDY, wildcards.attempt):
        inputs.append(f"{RECORDS}/precheck/{wildcards.attempt}/{wildcards.engine}/{wildcards.arm}.json")
    return inputs


def session_inputs(wildcards):
    """Records of all models and predictions of an attempt on one engine."""
    models = plan.models_of_arms(STUDY, wildcards.attempt, STUDY.arms_of(wildcards.attempt))
    inputs = [f"{RECORDS}/{plan.model_record(STUDY, model)}" for model in models]
    for arm in plan.paired_arms(STUDY, wildcards.attempt):
        inputs.append(f"{RECORDS}/precheck/{wildcards.attempt}/{wildcards.engine}/{arm.id}.json")
    return inputs


rule probe:
    """
    Ask an engine what it is and what it offers: build, speculation types, defaults, devices.

    Input: record of its environment. Output: record of the probe.
    """
    input:
        environments=engine_environments,
        script=script("probe"),
        modules=modules("engine/probe"),
    output:
        record=f"{RECORDS}/probes/{{engine}}.json",
    params:
        entry=lambda wildcards: digest(STUDY.engines[wildcards.engine]),
    log:
        "results/logs/probe-{engine}.log",
    shell:
        "{PYTHON:q} {input.script:q} --engine {wildcards.engine:q} --records {RECORDS:q} --cache {CACHE:q}"
        " --overrides {OVERRIDES:q} --record {output.record:q} 2>&1 | tee {log:q}"


rule load:
    """
    Start one arm once on one engine, ask one short request per prompt class, stop: does it load, does it draft?

    Input: records of models, environment, probe, prediction. Output: record of the load.
    """
    input:
        host=rules.host.output.record,
        environments=engine_environments,
        probe=lambda wildcards: [
            f"{RECORDS}/probes/{engine.id}.json"
            for engine in plan.engines_of_job(STUDY, wildcards.attempt, wildcards.engine)
        ],
        models=arm_inputs,
        script=script("load"),
        modules=modules("arm_runner", "engine/arms", "engine/client", "engine/drivers"),
    output:
        record=f"{RECORDS}/loads/{{attempt}}/{{engine}}/{{arm}}.json",
    params:
        entry=lambda wildcards: digest(
            STUDY.attempts[wildcards.attempt].arm(wildcards.arm), STUDY.study.roles_of(wildcards.attempt)
        ),
    threads: workflow.cores
    log:
        "results/logs/load-{attempt}-{engine}-{arm}.log",
    shell:
        "{PYTHON:q} {input.script:q} --attempt {wildcards.attempt:q} --engine {wildcards.engine:q}"
        " --arm {wildcards.arm:q} --records {RECORDS:q} --cache {CACHE:q} --overrides {OVERRIDES:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"


rule measure:
    """
    Blocks of arms, each in a fresh engine process, until the verdict is settled or the maximum is reached.

    Input: records of models, environments, probes, predictions. Output: record of the session; every block is a record
    of its own beside it, written when it ends, so an interrupted session goes on where it stopped. The job takes all
    cores: nothing of the workflow runs beside a measurement.
    """
    input:
        host=rules.host.output.record,
        environments=engine_environments,
        probe=lambda wildcards: [
            f"{RECORDS}/probes/{engine.id}.json"
            for engine in plan.engines_of_job(STUDY, wildcards.attempt, wildcards.engine)
        ],
        models=session_inputs,
        script=script("measure"),
        modules=modules(
            "arm_runner",
            "session",
            "blocks",
            "gates",
            "machine",
            "design",
            "inference",
            "engine/arms",
            "engine/client",
            "engine/drivers",
        ),
    output:
        record=f"{RECORDS}/measure/{{attempt}}/{{engine}}/session.json",
    params:
        entry=lambda wildcards: digest(
            STUDY.arms_of(wildcards.attempt), STUDY.study.roles_of(wildcards.attempt), STUDY.study.protocol
        ),
    threads: workflow.cores
    log:
        "results/logs/measure-{attempt}-{engine}.log",
    shell:
        "{PYTHON:q} {input.script:q} --attempt {wildcards.attempt:q} --engine {wildcards.engine:q}"
        " --records {RECORDS:q} --cache {CACHE:q} --overrides {OVERRIDES:q}"
        " --record {output.record:q} 2>&1 | tee {log:q}"

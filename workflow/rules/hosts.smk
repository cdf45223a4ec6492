# Several builds and several machines: the timeline, bisection, the lock of hub models, bundles.
TIMELINE = with_all_builds(STUDY)


def timeline_records(wildcards):
    """Records of the cheap tests (convert, load, probe) over every build that the sources offer."""
    found = {}
    for attempt in TIMELINE.study.attempts:
        for record in plan.attempt_records(TIMELINE, attempt):
            found[f"{RECORDS}/{record}"] = None
    return list(found)


def bisection_inputs(wildcards):
    """Records that every trial of a bisection starts from: the machine, and the models of the attempt."""
    models = plan.models_of_arms(STUDY, wildcards.attempt, STUDY.arms_of(wildcards.attempt))
    records = ["host.json", *(plan.model_record(STUDY, model) for model in models)]
    checkpoints = [item.checkpoint for item in STUDY.study.attempts[wildcards.attempt].convert]
    return [f"{RECORDS}/{record}" for record in [*records, *(f"sources/{name}.json" for name in checkpoints)]]


rule timeline:
    """
    Every finding that a build decides, over all builds: the last where it held, the first where it did not.

    Input: records of all builds. Output: the table, and a figure of it.
    """
    input:
        records=timeline_records,
        script=script("verdicts"),
        evidence=script("evidence"),
        figures=script("figures"),
        modules=modules("verdicts", "verdict_rows", "all_builds", "figures"),
    output:
        verdicts="results/timeline/verdicts.parquet",
        svg="results/timeline/timeline.svg",
        png="results/timeline/timeline.png",
    params:
        folder="results/timeline",
    log:
        "results/logs/timeline.log",
    shell:
        "{{ {PYTHON:q} {input.evidence:q} --records results/records --overrides {OVERRIDES:q} --out {params.folder:q} &&"
        " {PYTHON:q} {input.script:q} --records results/records --host {HOST:q} --overrides {OVERRIDES:q}"
        " --out {output.verdicts:q} --scores {params.folder:q}/precheck_scores.parquet &&"
        " {PYTHON:q} {input.figures:q} --tables {params.folder:q} --overrides {OVERRIDES:q} --only timeline"
        " --out {params.folder:q} ; }} 2>&1 | tee {log:q}"


rule bisect:
    """
    The pair of neighbouring builds between which each finding of an attempt stops holding.

    Input: records of models and checkpoints. Output: what was tried, and the pair.
    """
    input:
        records=bisection_inputs,
        script=script("bisect_builds"),
        modules=modules("bisection", "all_builds", "verdicts"),
    output:
        found="results/bisect/{attempt}.json",
    threads: workflow.cores
    log:
        "results/logs/bisect-{attempt}.log",
    shell:
        "{PYTHON:q} {input.script:q} --attempt {wildcards.attempt:q} --records {RECORDS:q} --cache {CACHE:q}"
        " --overrides {OVERRIDES:q} --out {output.found:q} 2>&1 | tee {log:q}"


# bisect_attempt_1 ... as targets.
for name in STUDY.study.attempts:

    rule:
        name:
            f"bisect_{name}"
        input:
            f"results/bisect/{name}.json",


rule lock:
    """
    Resolve every hub model of the study to a commit, sizes and sha256.

    Output: config/<study>.lock.yaml, written only when every model could be asked for; it is always made anew.
    """
    input:
        script=script("lock"),
        modules=modules("lock"),
    log:
        "results/logs/lock.log",
    shell:
        "{PYTHON:q} {input.script:q} --study {STUDY.study.id:q} 2>&1 | tee {log:q}"


rule export:
    """
    A bundle of this host's records, for other machines and for publication; always made anew.

    Input: nothing but the records that are here. Output: results/export/<host>.zip.
    """
    input:
        script=script("export"),
        modules=modules("bundles", "leakscan"),
    params:
        bundle=f"results/export/{HOST}.zip",
    log:
        "results/logs/export.log",
    shell:
        "{PYTHON:q} {input.script:q} --records results/records --host {HOST:q} --out {params.bundle:q} 2>&1 | tee {log:q}"

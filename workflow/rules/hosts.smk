# Several builds and several machines: the timeline, bisection, the lock of hub models, bundles.


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
    log:
        "results/logs/timeline.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        host=HOST,
        folder=lambda wildcards, output: str(Path(output.verdicts).parent),
    shell:
        "{{ python {input.evidence:q} --records results/records --out {params.folder:q} &&"
        " python {input.script:q} --records results/records --host {params.host:q}"
        " --out {output.verdicts:q} --scores {params.folder:q}/precheck_scores.parquet &&"
        " python {input.figures:q} --tables {params.folder:q} --only timeline"
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
    log:
        "results/logs/bisect-{attempt}.log",
    conda:
        "../../envs/pipeline.yaml"
    # As a function: how many there are is said when jobs run here, not when a cluster takes them.
    threads: lambda wildcards: workflow.cores if workflow.local_exec else 1
    params:
        records=lambda wildcards: RECORDS,
    shell:
        "python {input.script:q} --attempt {wildcards.attempt:q} --records {params.records:q}"
        " --out {output.found:q} 2>&1 | tee {log:q}"


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
    conda:
        "../../envs/pipeline.yaml"
    params:
        study=STUDY.study.id,
    shell:
        "python {input.script:q} --study {params.study:q} 2>&1 | tee {log:q}"


rule export:
    """
    A bundle of the records of every host of this run, for other machines and for publication; always made anew.

    Input: nothing but the records that are here. Output: results/export/<host>.zip for each.
    """
    input:
        script=script("export"),
        modules=modules("bundles", "leakscan"),
    log:
        "results/logs/export.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        hosts=MEASURING_HOSTS,
    shell:
        "python {input.script:q} --records results/records {params.hosts:q} 2>&1 | tee {log:q}"


rule doctor:
    """
    What this machine has, what of the study can run on it, how much would be fetched, how long it takes.

    Output: text on the terminal and in the log; always made anew, fetches nothing.
    """
    input:
        script=script("doctor"),
        modules=modules("doctor", "gpu_checks", "host"),
    log:
        "results/logs/doctor.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "python {input.script:q} 2>&1 | tee {log:q}"

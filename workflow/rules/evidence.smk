# Records to tables, tables to verdicts: for one attempt alone, and for the whole study.


rule attempt_tables:
    """
    Tables of one attempt: requests, outcomes, effects.

    Input: records of the attempt. Output: Parquet tables.
    """
    input:
        records=records_of,
        script=script("evidence"),
        modules=modules("evidence", "tables", "published"),
        config=[str(path) for path in STUDY.files],
    output:
        measurements="results/attempts/{attempt}/measurements.parquet",
        outcomes="results/attempts/{attempt}/outcomes.parquet",
        effects="results/attempts/{attempt}/effects.parquet",
    log:
        "results/logs/tables-{attempt}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        folder=lambda wildcards, output: str(Path(output.measurements).parent),
        beyond=lambda wildcards: records_beyond(),
    shell:
        "python {input.script:q} --records results/records --attempt {wildcards.attempt:q}"
        " --out {params.folder:q} 2>&1 | tee {log:q}"


rule attempt:
    """
    The verdicts of one attempt: the target attempt_N ends here.

    Input: tables and records of the attempt. Output: its verdicts.
    """
    input:
        effects="results/attempts/{attempt}/effects.parquet",
        records=records_of,
        script=script("verdicts"),
        modules=modules("verdicts", "gates", "inference"),
    output:
        verdicts="results/attempts/{attempt}/verdicts.parquet",
    log:
        "results/logs/verdicts-{attempt}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        hosts=MEASURING_HOSTS,
    shell:
        "python {input.script:q} --records results/records --attempt {wildcards.attempt:q} {params.hosts:q}"
        " --out {output.verdicts:q} 2>&1 | tee {log:q}"


rule tables:
    """
    Tables of the whole study, published and imported evidence with it.

    Input: all records. Output: Parquet tables (docs/tables.md).
    """
    input:
        records=all_records,
        imports=[item.path for item in STUDY.settings.imports],
        script=script("evidence"),
        modules=modules("evidence", "tables", "imports", "published"),
        config=[str(path) for path in STUDY.files],
    output:
        measurements="results/tables/measurements.parquet",
        outcomes="results/tables/outcomes.parquet",
        effects="results/tables/effects.parquet",
        hosts="results/tables/hosts.parquet",
    log:
        "results/logs/tables.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        beyond=lambda wildcards: records_beyond(),
    shell:
        "python {input.script:q} --records results/records" " --out results/tables 2>&1 | tee {log:q}"


rule verdicts:
    """
    One verdict per finding, scope, host and engine.

    Input: all records and tables. Output: the verdicts, and the pre-check's predictions beside what happened.
    """
    input:
        tables=rules.tables.output,
        records=all_records,
        script=script("verdicts"),
        modules=modules("verdicts", "gates", "inference", "precheck"),
        config=[str(path) for path in STUDY.files],
    output:
        verdicts="results/tables/verdicts.parquet",
        scores="results/tables/precheck_scores.parquet",
    log:
        "results/logs/verdicts.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        hosts=MEASURING_HOSTS,
    shell:
        "python {input.script:q} --records results/records {params.hosts:q}"
        " --out {output.verdicts:q} --scores {output.scores:q} 2>&1 | tee {log:q}"


# attempt_1 ... attempt_6 and backend_switch as targets: each runs only what it needs itself.
for name in STUDY.study.attempts:

    rule:
        name:
            name
        input:
            f"results/attempts/{name}/verdicts.parquet",

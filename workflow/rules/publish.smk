# What people read: figures, the report, and the regenerated document.


rule figures:
    """
    Every figure of the report, as SVG and PNG.

    Input: tables. Output: the folder of figures.
    """
    input:
        tables=rules.tables.output,
        verdicts=rules.verdicts.output,
        script=script("figures"),
        modules=modules(
            "figures", "looks", "words", "story", "comparisons", "buildline", "cost_curves", "breakeven", "tables"
        ),
    output:
        folder=directory("results/figures"),
    log:
        "results/logs/figures.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "python {input.script:q} --tables results/tables" " --out {output.folder:q} 2>&1 | tee {log:q}"


rule report_page:
    """
    The report: one self-contained page.

    Input: tables, verdicts, figures. Output: results/report/index.html.
    """
    input:
        tables=rules.tables.output,
        verdicts=rules.verdicts.output,
        figures=rules.figures.output,
        script=script("report"),
        modules=modules(
            "report", "publish", "story", "view", "words", "looks", "disagreement", "comparisons", "leakscan"
        ),
        templates=TEMPLATES,
        captions=CAPTIONS,
    output:
        page="results/report/index.html",
    log:
        "results/logs/report.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "python {input.script:q} --tables results/tables --figures {input.figures:q}"
        " --out {output.page:q} 2>&1 | tee {log:q}"


# The target is called report; a rule of that name would be read as Snakemake's keyword by its formatter.
rule:
    name:
        "report"
    default_target: True
    input:
        rules.report_page.output,


rule published_tables:
    """
    Tables of what is committed: published figures, imported files and bundles; nothing of this machine.

    Input: configuration and bundles. Output: tables that are the same on every machine.
    """
    input:
        imports=[item.path for item in STUDY.settings.imports],
        script=script("evidence"),
        verdicts=script("verdicts"),
        modules=modules("evidence", "tables", "imports", "published", "verdicts", "bundles"),
        config=[str(path) for path in STUDY.files],
    output:
        measurements="results/publish/tables/measurements.parquet",
        outcomes="results/publish/tables/outcomes.parquet",
        effects="results/publish/tables/effects.parquet",
        hosts="results/publish/tables/hosts.parquet",
        verdicts="results/publish/tables/verdicts.parquet",
        scores="results/publish/tables/precheck_scores.parquet",
    log:
        "results/logs/published-tables.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        nothing="results/publish/no-records",
        out=lambda wildcards, output: str(Path(output.verdicts).parent),
    shell:
        "{{ python {input.script:q} --records {params.nothing:q} --out {params.out:q} &&"
        " python {input.verdicts:q} --records {params.nothing:q} --out {output.verdicts:q}"
        " --scores {output.scores:q} ; }} 2>&1 | tee {log:q}"


rule imports_report:
    """
    The report of what is imported and published alone: several hosts on one page, nothing measured or fetched here.

    Input: tables of what is committed and imported. Output: results/publish/report/index.html.
    """
    input:
        tables=rules.published_tables.output,
        figures=script("figures"),
        script=script("report"),
        modules=modules("report", "story", "view", "words", "figures", "looks", "disagreement", "leakscan"),
        templates=TEMPLATES,
        captions=CAPTIONS,
    output:
        page="results/publish/report/index.html",
    log:
        "results/logs/imports-report.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        tables=lambda wildcards, input: str(Path(input.tables[0]).parent),
        figures="results/publish/figures",
        nothing="results/publish/no-records",
    shell:
        "{{ python {input.figures:q} --tables {params.tables:q} --records {params.nothing:q} --out {params.figures:q} &&"
        " python {input.script:q} --tables {params.tables:q} --figures {params.figures:q} --out {output.page:q} ; }}"
        " 2>&1 | tee {log:q}"


rule publish:
    """
    The regenerated document with its figures, from committed evidence alone.

    Input: tables of what is committed. Output: docs/gemma-4-mtp-on-pascal.md and docs/figures.
    """
    input:
        tables=rules.published_tables.output,
        figures=script("figures"),
        script=script("publish"),
        modules=modules("publish", "story", "view", "words", "figures", "looks", "comparisons", "leakscan"),
        templates=TEMPLATES,
    output:
        document="docs/gemma-4-mtp-on-pascal.md",
    log:
        "results/logs/publish.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        tables=lambda wildcards, input: str(Path(input.tables[0]).parent),
        figures="docs/figures",
        readme="README.md",
    shell:
        "{{ python {input.figures:q} --tables {params.tables:q} --records results/publish/no-records --out {params.figures:q} &&"
        " python {input.script:q} --tables {params.tables:q} --figures {params.figures:q}"
        " --readme {params.readme:q} --out {output.document:q} ; }} 2>&1 | tee {log:q}"

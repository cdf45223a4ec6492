# Entry at the root: `snakemake --cores 1` makes the report. The workflow itself is workflow/Snakefile.
include: "workflow/Snakefile"


workflow.default_target = "report"

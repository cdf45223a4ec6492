# Models, archives and isolated environments: fetched once into the cache, with a record of every mirror tried.


rule host:
    """
    Facts of a machine that measures, under a generic label.

    Output: record with processor, cores, memory, GPUs.
    """
    input:
        script=script("host"),
        modules=modules("host", "records"),
        code_there=code_there,
    output:
        record="results/records/{host}/host.json",
    log:
        "results/logs/host-{host}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        **FOR_A_LOOK,
    params:
        there=lambda wildcards: there(wildcards.host),
    shell:
        "python {input.script:q} --host {wildcards.host:q} --record {output.record:q} 2>&1 | tee {log:q}"


# The machine that runs the workflow looks at itself, never a node at itself under that machine's label.
use rule host as host_here with:
    wildcard_constraints:
        host=re.escape(HOST),


ruleorder: host_here > host


rule fetch_model:
    """
    One model through its mirrors, in order.

    Input: the files of a checkpoint that is committed here; else the configuration alone. Output: record with sha256,
    size and place in the cache, where the bytes lie.
    """
    input:
        checkpoint=committed_files,
        script=script("fetch"),
    output:
        record=f"{RECORDS}/sources/{{model}}.json",
    log:
        "results/logs/fetch-{model}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        network=1,
    params:
        host=HOST,
        entry=lambda wildcards: digest(STUDY.models[wildcards.model]),
    shell:
        "python {input.script:q} --model {wildcards.model:q}"
        " --host {params.host:q} --record {output.record:q} 2>&1 | tee {log:q}"


rule fetch_archive:
    """
    One archive through its mirrors: a converter's source, or an engine's release.

    Output: record with sha256, size and place in the cache.
    """
    input:
        script=script("fetch"),
    output:
        record=f"{RECORDS}/sources/{{archive}}.json",
    log:
        "results/logs/fetch-{archive}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        network=1,
    params:
        host=HOST,
        entry=lambda wildcards: digest(archive_of(wildcards.archive)),
    shell:
        "python {input.script:q} --archive {wildcards.archive:q}"
        " --host {params.host:q} --record {output.record:q} 2>&1 | tee {log:q}"


rule environment:
    """
    One isolated Python environment from a lock with hashes (an engine's, or the converters').

    Input: the lock. Output: record with the interpreter's place in the cache and the lock's sha256.
    """
    input:
        script=script("environment"),
        lock="envs/{environment}.txt",
    output:
        record=f"{RECORDS}/environments/{{environment}}.json",
    log:
        "results/logs/environment-{environment}.log",
    conda:
        "../../envs/pipeline.yaml"
    resources:
        network=1,
    params:
        host=HOST,
    shell:
        "python {input.script:q} --environment {wildcards.environment:q} --lock {input.lock:q}"
        " --host {params.host:q} --record {output.record:q} 2>&1 | tee {log:q}"

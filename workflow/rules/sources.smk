# Models, archives and isolated environments: fetched once into the cache, with a record of every mirror tried.


rule host:
    """
    Facts of this machine under a generic label.

    Output: record with processor, cores, memory, GPUs.
    """
    input:
        script=script("host"),
        modules=modules("host", "records"),
    output:
        record=f"{RECORDS}/host.json",
    params:
        host=STUDY.settings.host,
    log:
        "results/logs/host.log",
    shell:
        "{PYTHON:q} {input.script:q} --host {params.host:q} --record {output.record:q} 2>&1 | tee {log:q}"


rule fetch_model:
    """
    One model through its mirrors, in order.

    Input: configuration. Output: record with sha256, size and place in the cache; the bytes lie in the cache.
    """
    input:
        script=script("fetch"),
    output:
        record=f"{RECORDS}/sources/{{model}}.json",
    params:
        entry=lambda wildcards: digest(STUDY.models[wildcards.model]),
    resources:
        network=1,
    log:
        "results/logs/fetch-{model}.log",
    shell:
        "{PYTHON:q} {input.script:q} --model {wildcards.model:q} --overrides {OVERRIDES:q}"
        " --cache {CACHE:q} --host {HOST:q} --record {output.record:q} 2>&1 | tee {log:q}"


rule fetch_archive:
    """
    One converter's source archive through its mirrors.

    Output: record with sha256, size and place in the cache.
    """
    input:
        script=script("fetch"),
    output:
        record=f"{RECORDS}/sources/{{converter}}.json",
    params:
        entry=lambda wildcards: digest(STUDY.converters[wildcards.converter]),
    resources:
        network=1,
    log:
        "results/logs/fetch-{converter}.log",
    shell:
        "{PYTHON:q} {input.script:q} --archive {wildcards.converter:q} --overrides {OVERRIDES:q}"
        " --cache {CACHE:q} --host {HOST:q} --record {output.record:q} 2>&1 | tee {log:q}"


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
    resources:
        network=1,
    log:
        "results/logs/environment-{environment}.log",
    shell:
        "{PYTHON:q} {input.script:q} --environment {wildcards.environment:q} --lock {input.lock:q}"
        " --cache {CACHE:q} --host {HOST:q} --record {output.record:q} 2>&1 | tee {log:q}"

# Slurm (profiles/slurm): what the jobs that measure ask for. Everything else stays on the machine that submits.
from findings import cluster

# Rules whose jobs look at a machine or its engines.
ON_NODES = ("host", "probe", "load", "measure")


def slurm_of(label):
    """Where Slurm sends the jobs of a host."""
    remote = plan.host_of(STUDY, label)
    return remote.slurm if remote else {}


def on_cluster(minutes, memory_mb):
    """Resources of a rule by Snakemake's names, from functions of an attempt; none where no host is in a cluster."""
    if not any(plan.by_slurm(STUDY, remote.label) for remote in STUDY.settings.hosts):
        return {}

    # Which executor runs the jobs is known when they are made, not yet when this file is read.
    def on_nodes(value):
        return lambda wildcards: None if workflow.local_exec else value(wildcards)

    def place(key):
        return on_nodes(lambda wildcards: slurm_of(wildcards.host).get(key) or None)

    return {
        "runtime": lambda wildcards: minutes(wildcards.get("attempt")),
        "mem_mb": lambda wildcards: memory_mb(wildcards.get("attempt")),
        "cpus_per_task": on_nodes(lambda wildcards: STUDY.study.threads),
        "slurm_partition": place("partition"),
        "constraint": place("constraint"),
        "gpu": place("gpu"),
        "gpu_model": place("gpu_model"),
        "slurm_extra": on_nodes(lambda wildcards: cluster.submit_options(slurm_of(wildcards.host))),
    }


@functools.cache
def attempt_memory(attempt):
    """Asked for by every job of an attempt."""
    return cluster.memory_mb(STUDY, attempt)


FOR_A_LOOK = on_cluster(lambda attempt: cluster.LEAST_MINUTES, lambda attempt: cluster.PROCESS_MB)
FOR_A_LOAD = on_cluster(lambda attempt: cluster.load_minutes(STUDY, attempt), attempt_memory)
FOR_A_SESSION = on_cluster(lambda attempt: cluster.session_minutes(STUDY, attempt), attempt_memory)


def misplaced(label):
    """Why the jobs of a host cannot run as this run was started; empty where they can."""
    if plan.by_slurm(STUDY, label):
        return (
            f"hosts[{label}].slurm: its jobs go through Slurm; add --profile profiles/slurm"
            if workflow.local_exec
            else ""
        )
    if workflow.local_exec:
        return ""
    mend = "measure_here: false" if label == HOST else "no --profile profiles/slurm for it"
    return f"{label} measures without Slurm, and with this profile every measuring job goes to a node; choose {mend}"


onstart:
    # Not before: a dry run or listing needs no cluster.
    labels = {job.wildcards.host for job in workflow.dag.needrun_jobs() if job.rule.name in ON_NODES}
    for problem in filter(None, map(misplaced, sorted(labels))):
        raise WorkflowError(f"config/config.yaml: {problem}")

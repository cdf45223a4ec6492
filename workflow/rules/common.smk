# Configuration, names and paths that every rule shares. Values passed to rules are plain text and numbers.
import functools
import re
import sys
from pathlib import Path

SCRIPTS = Path(workflow.current_basedir).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from findings.cache import cache_root
from findings.config import ConfigurationError, load_configuration
from findings import plan
from findings.all_builds import with_all_builds
from findings.cluster import end_left_jobs
from findings.host import resolve_label
from findings.interrupted import export_this_run, hold_folder, whole_sessions
from findings.real_run import ask_again, before_a_real_run
from findings.records import sha256_text
from findings.stale import failed_for_a_while, records_of_gone_files, unreached_records
from findings.jobs_environment import export_to_jobs, host_of_run
from findings.writing import refused, require_writable
from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import ExecMode


def checked(function, *arguments):
    """The result, or a workflow error that shows the message alone, without a traceback."""
    try:
        return function(*arguments)
    except (ConfigurationError, ValueError) as error:
        raise WorkflowError(str(error)) from None


STUDY = checked(load_configuration, Path(), config)
# A job on a node parses this file again: the label is that of the machine where the run was started.
IS_RUN = workflow.exec_mode == ExecMode.DEFAULT
HOST = (not IS_RUN and host_of_run()) or checked(resolve_label, STUDY.settings.host)
CACHE = cache_root(STUDY.settings.cache)
TIMELINE = with_all_builds(STUDY)
# What is fetched, converted and looked at belongs to this machine; what is measured, to the machine that measures.
RECORDS = f"results/records/{HOST}"
STUDY_ON = {
    **({HOST: STUDY} if STUDY.settings.measure_here else {}),
    **{remote.label: plan.on_host(STUDY, remote) for remote in STUDY.settings.hosts},
}
OVER_SSH = [label for label in STUDY_ON if plan.by_ssh(STUDY, label)]
REMOTE_CODE = sorted(str(path) for path in (SCRIPTS / "findings" / "remote").iterdir() if path.suffix in (".py", ".sh"))
export_to_jobs(CACHE, config, HOST)


def asked_in_vain():
    """Records of what may succeed now."""
    found = failed_for_a_while(Path(RECORDS))
    for label in OVER_SSH:
        found += unreached_records(Path(records_on(label)))
    return [str(path) for path in found]


def mend_what_is_here():
    """Let a run start from what is true: without a killed run's lock, and without records that no longer hold."""
    try:
        require_writable(Path("results"))
        # Only the one run that works in this folder mends it.
        if hold_folder(Path(".snakemake")):
            # A record of bytes that the cache no longer holds goes: where a job needs them, they are fetched again.
            # A session that was killed when all was written is not measured again.
            whole = whole_sessions(Path(".snakemake"), Path("results/records"))
            for path in [*records_of_gone_files(Path(RECORDS), CACHE), *whole]:
                path.unlink(missing_ok=True)
            for job in checked(end_left_jobs, Path()):
                print(f"[slurm] ended job {job} of a run that was killed", file=sys.stderr)
    except OSError as error:
        raise WorkflowError(str(refused(error) or error)) from None


if IS_RUN:
    export_this_run()
    before_a_real_run(workflow, mend_what_is_here)
    # A fetch that failed for a while (no network, a full disk) is tried again, with all that rests on it; so is what a
    # machine over ssh did not answer.
    ask_again(workflow, asked_in_vain)

# Logs tell how a job went; its result does not rest on them. A log that cannot be written (a full disk) is told, and
# fails no job: Snakemake would remove the record of a session that is measured, written and closed.
shell.prefix(
    'set -euo pipefail; tee() {{ command tee "$@" || echo "$1 is not whole; no result rests on a log" >&2; }}; '
)


# The machines whose verdicts are said and whose records are exported, as arguments of a tool.
MEASURING_HOSTS = [part for label in STUDY_ON for part in ("--host", label)]
TEMPLATES = sorted(str(path) for path in (SCRIPTS / "findings" / "templates").iterdir())
CAPTIONS = sorted(str(path) for path in (SCRIPTS.parent / "workflow" / "report").glob("*.rst"))


def modules(*names):
    """Files of findings modules, as inputs: an edit of one makes Snakemake run the rule again."""
    return [str(SCRIPTS / "findings" / f"{name}.py") for name in names]


def script(name):
    """Path of a command-line tool."""
    return str(SCRIPTS / f"{name}.py")


def digest(*things):
    """Short hash of configuration entries: as a parameter it makes Snakemake notice that an entry changed."""
    return sha256_text(repr(things))[:16]


def records_on(label):
    """Folder of the records of one machine."""
    return f"results/records/{label}"


def there(label, engine=""):
    """What decides what a machine over ssh is asked, and what is asked there; the same for every other machine."""
    if label not in OVER_SSH:
        return digest()
    remote = plan.host_of(STUDY, label)
    return digest(remote.ssh, remote.folder, remote.executables.get(engine, ""))


def code_there(wildcards):
    """Files of the code that works on a machine over ssh, as inputs; none for other machines."""
    return REMOTE_CODE if wildcards.host in OVER_SSH else []


def measuring_threads(wildcards):
    """Cores of this machine that a measuring job takes.

    All of them where it measures here, so that nothing of the workflow runs beside it; one where it waits for an
    engine elsewhere; the study's threads as a job of a cluster.
    """
    if wildcards.host == HOST and workflow.local_exec:
        return workflow.cores
    return STUDY.study.threads if plan.by_slurm(STUDY, wildcards.host) else 1


def on_host(label):
    """The resource that jobs of a machine share: there is one of it, so they never overlap."""
    return f"host_{re.sub('[^a-z0-9]', '_', label)}"


ONE_AT_A_TIME = {
    on_host(label): (lambda wildcards, label=label: int(wildcards.host == label)) for label in [HOST, *STUDY_ON]
}
for name in ONE_AT_A_TIME:
    workflow.register_resource(name, 1)


def conversion_inputs(wildcards):
    """Records of the checkpoint, the converter's source and the environment that it runs in."""
    converter = STUDY.converters[wildcards.converter]
    return {
        "checkpoint": f"{RECORDS}/sources/{wildcards.model}.json",
        "archive": f"{RECORDS}/sources/{wildcards.converter}.json",
        "environment": f"{RECORDS}/environments/{converter.environment}.json",
    }


def original_of(wildcards):
    """Record of the model that a changed copy is made of."""
    return f"{RECORDS}/{plan.model_record(STUDY, STUDY.models[wildcards.model].copied_from)}"


def pair_facts(wildcards):
    """Facts of target and drafter of an arm."""
    attempt = STUDY.attempts[wildcards.attempt]
    models = plan.models_of_arms(STUDY, wildcards.attempt, [attempt.arm(wildcards.arm)])
    return [f"{RECORDS}/{plan.model_record(STUDY, model)}" for model in models]


def archive_of(name):
    """The configuration of an archive: a converter's source, or an engine's release."""
    return STUDY.converters[name].source if name in STUDY.converters else STUDY.engines[name].archive


def engine_probes(wildcards):
    """Records of the probes of the engines that a job starts, on the machine that it runs on."""
    engines = plan.engines_of_job(STUDY, wildcards.attempt, wildcards.engine)
    return [f"{records_on(wildcards.host)}/probes/{engine.id}.json" for engine in engines]


def engine_environments(wildcards):
    """Records of the environments and release archives of the engines that a job starts.

    None for a machine that is reached over ssh: what it runs lies there.
    """
    if plan.by_ssh(STUDY, wildcards.host):
        return []
    attempt = wildcards.get("attempt")
    engines = plan.engines_of_job(STUDY, attempt, wildcards.engine) if attempt else [STUDY.engines[wildcards.engine]]
    return [f"{RECORDS}/{record}" for record in plan.program_records(engines)]


def arm_inputs(wildcards):
    """Records of models and prediction for one arm on one engine."""
    arm = STUDY.attempts[wildcards.attempt].arm(wildcards.arm)
    models = plan.models_of_arms(STUDY, wildcards.attempt, [arm])
    inputs = [f"{RECORDS}/{plan.model_record(STUDY, model)}" for model in models]
    if arm in plan.paired_arms(STUDY, wildcards.attempt):
        inputs.append(f"{records_on(wildcards.host)}/precheck/{wildcards.attempt}/{wildcards.engine}/{arm.id}.json")
    return inputs


def session_inputs(wildcards):
    """Records of all models and predictions of an attempt on one engine."""
    models = plan.models_of_arms(STUDY, wildcards.attempt, STUDY.arms_of(wildcards.attempt))
    inputs = [f"{RECORDS}/{plan.model_record(STUDY, model)}" for model in models]
    for arm in plan.paired_arms(STUDY, wildcards.attempt):
        inputs.append(f"{records_on(wildcards.host)}/precheck/{wildcards.attempt}/{wildcards.engine}/{arm.id}.json")
    return inputs


@functools.cache
def records_of_attempt(attempt):
    """Records that the verdicts of one attempt rest on; asked for by several jobs, and again by every target."""
    found = dict.fromkeys(f"{RECORDS}/{record}" for record in ["host.json", *plan.shared_records(STUDY, attempt)])
    for label, study in STUDY_ON.items():
        found |= dict.fromkeys(f"{records_on(label)}/{record}" for record in plan.measured_records(study, attempt))
    return list(found)


def records_of(wildcards):
    """Records that the verdicts of one attempt rest on."""
    return list(records_of_attempt(wildcards.attempt))


@functools.cache
def planned_records():
    """Records of all attempts of the study, each once."""
    return list(dict.fromkeys(record for attempt in STUDY.study.attempts for record in records_of_attempt(attempt)))


def all_records(wildcards):
    """Records of all attempts of the study."""
    return list(planned_records())


@functools.cache
def records_beyond():
    """Hash of the names of records that are here beyond those planned (a timeline's, of other hosts, old engines').

    As a parameter it makes tables and verdicts take them in once they have appeared, without a job that depends on
    whether they exist. Sources and environments appear while the planned ones are made, and bring no job of their own.
    """
    here = {
        str(path)
        for path in Path("results/records").glob("*/*/**/*.json")
        if "run-" not in str(path) and path.parent.name not in ("sources", "environments")
    }
    return digest(sorted(here.difference(planned_records())))


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


def committed_files(wildcards):
    """Files of a checkpoint that is part of this project."""
    mirrors = STUDY.models[wildcards.model].mirrors
    folders = [Path(mirror.path) for mirror in mirrors if mirror.kind == "path"]
    names = [item.name for item in STUDY.models[wildcards.model].files]
    return [str(folder / name) for folder in folders for name in names if (folder / name).exists()]


wildcard_constraints:
    host=plan.wildcard([HOST, *(remote.label for remote in STUDY.settings.hosts)]),
    # Not the list of all names, as for the others: with a thousand attempts every path would be matched against it.
    attempt="[a-z0-9._-]+",
    engine=plan.wildcard(STUDY.engines),
    model=plan.wildcard(STUDY.models),
    converter=plan.wildcard(STUDY.converters),
    archive=plan.wildcard([*STUDY.converters, *(engine.id for engine in STUDY.engines.values() if engine.archive)]),
    wheel=plan.wildcard(STUDY.torch_wheels),
    arm="[a-z0-9._-]+",
    environment="[a-z0-9._-]+",

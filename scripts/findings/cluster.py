"""Jobs of a Slurm cluster: what they ask for, which node they run on, and those that a killed run left behind.

Snakemake's executor submits, watches and cancels; here is only what follows from the study. Memory in MB and time in
minutes, as Snakemake's resources `mem_mb` and `runtime` have them.
"""

from __future__ import annotations

import getpass
import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from findings import plan
from findings.config import Configuration, MirrorKind

# Generous: a job beyond its time is killed and has to be asked for again (finished blocks stay).
SLOW_TOKENS_PER_S = 4.0
SLOW_START_S = 60.0
LEAST_MINUTES = 10
# As many noisy blocks may be replaced (findings.measure.REPLACEMENT_SHARE, which would import the engines' client).
REPLACED_SHARE = 0.5
MB = 1_000_000
PROCESS_MB = 3_000
PADDING_MB = 500
# For a model whose size nobody has written down yet (config/*.lock comes first on a GPU host).
UNKNOWN_MODEL_MB = 8_000
END_WAIT_S = 60.0
POLL_S = 0.5
# The executor names its jobs so in their comment; a shell that the user started on a node has none.
COMMENT = "rule_"


def memory_mb(configuration: Configuration, attempt: str) -> int:
    """Memory for one job of an attempt: all its models at once, and the programs around them."""
    arms = configuration.arms_of(attempt)
    sizes = [model_bytes(configuration, model) for model in plan.models_of_arms(configuration, attempt, arms)]
    models = sum(UNKNOWN_MODEL_MB if size is None else math.ceil(size / MB) for size in sizes)
    least = math.ceil(configuration.study.attempts[attempt].requires.memory_bytes / MB)
    return max(PROCESS_MB + models, least)


def model_bytes(configuration: Configuration, model_id: str) -> int | None:
    """Size of a model as far as the configuration says it: its own, or that of what it is made from."""
    model = configuration.models[model_id]
    if model.size_bytes is not None:
        return model.size_bytes
    if model.copied_from is not None:
        original = model_bytes(configuration, model.copied_from)
        padding = PADDING_MB * MB if model.padded_from is not None else 0
        return None if original is None else original + padding
    if model.converted_from is not None:
        return model_bytes(configuration, model.converted_from.checkpoint)
    folders = [configuration.root / mirror.path for mirror in model.mirrors if mirror.kind is MirrorKind.PATH]
    sizes = [item.size_bytes or _committed_bytes(folders, item.name) for item in model.files]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _committed_bytes(folders: Sequence[Path], name: str) -> int | None:
    return next(((folder / name).stat().st_size for folder in folders if (folder / name).is_file()), None)


def load_minutes(configuration: Configuration, attempt: str) -> int:
    """Time for one load: a start that may take as long as it is allowed to, and one short answer per class."""
    protocol = configuration.study.protocol_of(attempt)
    classes = max((len(configuration.classes_of(attempt, arm)) for arm in configuration.arms_of(attempt)), default=0)
    answers = classes * (protocol.load_predict_tokens + protocol.warmup_tokens) / SLOW_TOKENS_PER_S
    return LEAST_MINUTES + math.ceil((protocol.start_timeout_s + answers) / 60)


def session_minutes(configuration: Configuration, attempt: str) -> int:
    """Time for a session of most blocks, noisy ones replaced, on a slow machine."""
    protocol = configuration.study.protocol_of(attempt)
    arms = configuration.measured_arms(attempt)
    prompts = sum(len(configuration.prompts_of(attempt, list(configuration.classes_of(attempt, arm)))) for arm in arms)
    tokens = prompts * protocol.predict_tokens + len(arms) * protocol.warmup_tokens
    block = len(arms) * SLOW_START_S + tokens / SLOW_TOKENS_PER_S
    blocks = protocol.max_blocks * (1 + REPLACED_SHARE)
    return LEAST_MINUTES + math.ceil(blocks * block / 60)


def submit_options(place: Mapping[str, str | int]) -> str:
    """Options of sbatch that are no resource of Snakemake's: a node without other jobs, and which nodes."""
    nodes = place.get("nodelist", "")
    return f"--exclusive --nodelist={nodes}" if nodes else "--exclusive"


def node_of_job(environment: Mapping[str, str] | None = None) -> str:
    """`node-a, job 17` inside of a Slurm job, else empty. For logs alone: a machine's name is not published."""
    known = os.environ if environment is None else environment
    node = known.get("SLURMD_NODENAME", "")
    return f"{node}, job {known.get('SLURM_JOB_ID', '?')}" if node else ""


def left_jobs(listing: str, folder: Path) -> list[str]:
    """Ids of jobs that a run in `folder` submitted, from squeue's lines `id|comment|folder`."""
    found = []
    for line in listing.splitlines():
        job, _, rest = line.partition("|")
        comment, _, place = rest.partition("|")
        if comment.startswith(COMMENT) and Path(place).resolve() == folder.resolve():
            found.append(job.strip())
    return found


def end_left_jobs(folder: Path) -> list[str]:
    """Cancel the jobs of a killed run in `folder` that Slurm still has, wait until they are gone, return their ids.

    Call it only where no run lives in the folder. Nothing happens where no job was ever submitted from there.
    """
    if shutil.which("squeue") is None or not (folder / ".snakemake" / "slurm_logs").is_dir():
        return []
    jobs = left_jobs(_queue(), folder)
    if not jobs:
        return []
    subprocess.run(["scancel", *jobs], check=False, capture_output=True, timeout=END_WAIT_S)
    deadline = time.monotonic() + END_WAIT_S
    while set(jobs) & set(left_jobs(_queue(), folder)):
        if time.monotonic() > deadline:
            raise ValueError(
                f"Slurm still runs {_named(jobs)} of a run that was killed, although they were cancelled; "
                f"see squeue, then try again"
            )
        time.sleep(POLL_S)
    return jobs


def _named(jobs: Sequence[str]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(jobs)


def _queue() -> str:
    """The user's jobs that wait or run; empty where Slurm does not answer."""
    command = ["squeue", f"--user={getpass.getuser()}", "--noheader", "--format=%i|%k|%Z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=END_WAIT_S)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""

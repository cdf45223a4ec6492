"""What jobs of a Slurm cluster ask for, and the parts of it that need no cluster."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from findings import cluster, interrupted, measure
from findings.config import load_configuration
from findings.site import measuring_alone

ROOT = Path(__file__).parents[2]
MINI = load_configuration(ROOT)
WAITING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from findings.interrupted import end_with_workflow
end_with_workflow()
time.sleep(float(sys.argv[2]))
print("left alone")
"""


def test_memory_is_that_of_all_models_of_an_attempt_also_of_those_made_here() -> None:
    sizes = {name: cluster.model_bytes(MINI, name) for name in MINI.models}
    target = MINI.models["gemma-3-270m-q4-k-m"].size_bytes
    assert target and sizes["gemma-3-270m-other-token-types"] == target
    folder = ROOT / "config" / "checkpoints" / "tiny-gemma4-target"
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert sizes["tiny-gemma4-target-f16"] == sum((folder / name).stat().st_size for name in names)
    one, two = (cluster.memory_mb(MINI, attempt) for attempt in ("attempt_2", "attempt_1"))
    assert cluster.PROCESS_MB < one < two
    published = load_configuration(ROOT, {"study": "pascal"})
    assert cluster.memory_mb(published, "attempt_1") >= cluster.UNKNOWN_MODEL_MB


@pytest.mark.parametrize("study", ["mini", "pascal"])
def test_a_session_has_time_for_more_than_its_most_blocks(study: str) -> None:
    configuration = load_configuration(ROOT, {"study": study})
    protocol = configuration.study.protocol
    for attempt in ("attempt_1", "attempt_6"):
        arms = configuration.measured_arms(attempt)
        minutes = cluster.session_minutes(configuration, attempt)
        assert minutes * 60 > protocol.max_blocks * len(arms) * protocol.predict_tokens / cluster.SLOW_TOKENS_PER_S
        assert cluster.load_minutes(configuration, attempt) * 60 > protocol.start_timeout_s
    assert cluster.load_minutes(configuration, "attempt_5") >= cluster.LEAST_MINUTES
    assert cluster.REPLACED_SHARE == measure.REPLACEMENT_SHARE


@pytest.mark.parametrize(
    "place", [{}, {"nodelist": ""}, {"nodelist": "gpu-e", "partition": "p"}, {"nodelist": "node17"}]
)
def test_the_executor_accepts_the_options_beyond_its_resources(place: dict[str, str | int]) -> None:
    options = cluster.submit_options(place)
    assert options.startswith("--exclusive")
    assert ("--nodelist=" in options) == bool(place.get("nodelist"))
    validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(slurm_extra=options)))


def test_only_jobs_of_this_folder_that_snakemake_submitted_were_left(tmp_path: Path) -> None:
    here = tmp_path / "a|b"
    listing = "\n".join(
        [
            f"11|rule_measure_wildcards_x|{here}",
            f"12|(null)|{here}",
            f"13|rule_load|{tmp_path}",
            f"14_2|rule_load|{here}/../a|b",
            "",
        ]
    )
    assert cluster.left_jobs(listing, here) == ["11", "14_2"]


def test_nothing_is_asked_where_no_job_was_ever_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_queue", lambda: pytest.fail("squeue was asked"))
    assert cluster.end_left_jobs(tmp_path) == []


def test_a_job_says_its_node_for_the_log() -> None:
    assert cluster.node_of_job({"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}) == "n1, job 7"
    assert cluster.node_of_job({"SLURM_JOB_ID": "7"}) == ""


def test_machines_that_share_a_cache_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_free(machine: str) -> bool:
        with (tmp_path / "locks" / f"measuring-{machine}.lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with measuring_alone(tmp_path, "here"):
        assert not is_free(interrupted.this_machine())
        assert is_free("another")
    assert is_free(interrupted.this_machine())
    monkeypatch.setattr(interrupted, "BOOT_ID", tmp_path / "none")
    assert interrupted.this_machine()


@pytest.mark.parametrize("machine", ["here", "elsewhere"])
def test_a_job_on_another_machine_does_not_look_for_the_run_in_its_own_process_table(machine: str) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    known = interrupted.this_machine() if machine == "here" else "another"
    variables = {interrupted.WORKFLOW_VARIABLE: f"{ended.pid}:1.0:{known}"}
    seconds = "60" if machine == "here" else "2"
    job = subprocess.run(
        [sys.executable, "-c", WAITING, str(ROOT / "scripts"), seconds],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert job.stdout == ("" if machine == "here" else "left alone\n")

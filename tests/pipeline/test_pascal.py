"""The study of the published models where none of it can run: no GPU, no hub, no package index, an empty cache.

It must still end well, with the reason of every attempt; and with a lock its whole graph must stand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from findings.config import load_configuration
from findings.host import nvidia_gpus
from findings.lock import waiting_models
from hubserver import COMMIT, HubServer
from surroundings import copy_project, run_snakemake

NOWHERE = "http://127.0.0.1:9"
OFFLINE = {"HF_ENDPOINT": NOWHERE, "PIP_INDEX_URL": f"{NOWHERE}/simple", "PIP_CONFIG_FILE": os.devnull}
NO_GPU = "needs a GPU, and this machine has none that NVML reports"
UNLOCKED = "no commit and sha256 are known for it yet: run `snakemake --cores 1 lock`, then try again"
SPEED = re.compile(r"does_not_pay|pays|slower")


def snakemake(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A user's command on the study pascal; no token, and an executable of the study's nowhere on PATH."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "PIP_"))}
    environment = kept | {"FINDINGS_CACHE": str(project / "cache"), "NO_PROXY": "127.0.0.1,localhost"} | variables
    settings = ("--config", "host=here", "--configfile", "config/pascal.yaml")
    return run_snakemake(project, environment, *arguments, *settings)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the report of the study was asked for."""
    if nvidia_gpus():
        pytest.skip("this machine has an NVIDIA GPU: A MACHINE WITHOUT ONE IS NOT TESTED HERE")
    project = copy_project(tmp_path_factory.mktemp("pascal") / "project")
    done = snakemake(project, "report", **OFFLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def records(project: Path, kind: str) -> dict[str, dict[str, Any]]:
    folder = project / "results" / "records" / "here" / kind
    found = {str(path.relative_to(folder)): json.loads(path.read_text("utf-8")) for path in folder.rglob("*.json")}
    assert found, f"no record of {kind}"
    return found


def test_every_session_and_load_says_that_a_gpu_is_missing(reported: Path) -> None:
    study = load_configuration(reported, {"study": "pascal"}).study
    sessions = records(reported, "measure")
    assert set(sessions) == {
        f"{name}/{engine}/session.json" for name, attempt in study.attempts.items() for engine in attempt.measure
    }
    for record in (*sessions.values(), *records(reported, "loads").values()):
        assert (record["outcome"], record["reason"]) == ("not_run", NO_GPU)


def test_models_without_a_lock_and_executables_that_are_missing_are_named(reported: Path) -> None:
    waiting = {model.id for model in waiting_models(load_configuration(reported, {"study": "pascal"}, use_lock=False))}
    assert len(waiting) >= 4
    sources = records(reported, "sources")
    for name in waiting:
        assert sources[f"{name}.json"]["outcome"] == "unavailable"
        assert UNLOCKED in sources[f"{name}.json"]["reason"]
    for record in records(reported, "probes").values():
        assert record["outcome"] == "unavailable"
        assert "is neither an executable file nor a name on PATH" in record["reason"]
    for record in records(reported, "conversions").values():
        assert record["outcome"] == "not_run"


def test_every_finding_is_not_testable_with_its_reason_and_what_would_change_that(reported: Path) -> None:
    verdicts = pq.read_table(reported / "results/tables/verdicts.parquet").to_pylist()
    ours = [row for row in verdicts if row["study"] == "pascal"]
    findings = load_configuration(reported, {"study": "pascal"}).findings
    assert {(row["finding"], row["scope"]) for row in ours} == {
        (finding, scope) for finding in findings for scope in ("as_published", "mechanism")
    }
    for row in ours:
        assert row["verdict"] == "not_testable", row
        assert row["reason"]
        assert row["would_make_testable"]
        assert row["ln_ratio"] is None
        if row["scope"] == "mechanism" and SPEED.search(row["finding"]) and row["attempt"]:
            assert row["reason"] == NO_GPU
        if row["scope"] == "as_published" and SPEED.search(row["finding"]) and row["attempt"]:
            assert "NVIDIA GPU of compute capability 6.1" in row["reason"]
    page = (reported / "results/report/index.html").read_text(encoding="utf-8")
    assert NO_GPU in page


def test_nothing_is_measured_or_fetched(reported: Path) -> None:
    assert not list((reported / "results/records").rglob("block-*.json"))
    assert not list((reported / "cache").rglob("*.gguf"))


# --- with a lock ------------------------------------------------------------------------------------------------------


def repositories(project: Path) -> Mapping[str, Mapping[str, bytes]]:
    """What the hub would hold for every model that waits for a lock: small files of the right names."""
    found: dict[str, dict[str, bytes]] = {}
    for model in waiting_models(load_configuration(project, {"study": "pascal"}, use_lock=False)):
        (mirror,) = model.mirrors
        names = [file.name for file in model.files] or [mirror.file or model.file]
        found.setdefault(mirror.repo, {}).update({name: f"{model.id} {name}".encode() for name in names})
    return found


def test_a_lock_pins_every_model_and_the_whole_graph_stands(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    held = repositories(project)
    large = frozenset(name for files in held.values() for name in files if name.endswith((".gguf", ".safetensors")))
    with HubServer(held, lfs=large) as hub:
        done = snakemake(project, "lock", HF_ENDPOINT=hub.url)
        assert done.returncode == 0, done.stdout + done.stderr
    lock = yaml.safe_load((project / "config/pascal.lock.yaml").read_text(encoding="utf-8"))
    for entry in lock["models"]:
        assert entry["revision"] == COMMIT
        for file in entry["files"]:
            content = held[entry["repo"]][file["name"]]
            assert file["sha256"] == hashlib.sha256(content).hexdigest()
            assert file["size_bytes"] == len(content)
    assert {entry["repo"] for entry in lock["models"]} == set(held)

    done = snakemake(project, "--dry-run", "report", **OFFLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout + done.stderr
    jobs = {name: int(count) for name, count in re.findall(r"^([a-z_]+) +(\d+)$", told, re.MULTILINE)}
    study = load_configuration(project, {"study": "pascal"}).study
    attempts = study.attempts.values()
    assert jobs["measure"] == sum(len(attempt.measure) for attempt in attempts)
    assert jobs["convert"] >= sum(len(item.converters) for attempt in attempts for item in attempt.convert)
    assert jobs["load"] >= sum(len(attempt.load) for attempt in attempts)
    assert jobs["torch_probe"] == len({wheel for attempt in attempts for wheel in attempt.torch_wheels})
    assert jobs["fetch_model"] >= len(lock["models"])
    assert {"host_here", "probe", "precheck", "tables", "verdicts", "figures", "report_page"} <= set(jobs)
    assert not (project / "results" / "records").exists()

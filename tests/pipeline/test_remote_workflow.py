"""The workflow with another machine: engines behind ssh, records of that machine, and none measured here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import engine_bench as bench
from findings.programs import program_sha256
from findings.records import Outcome, read_record
from findings.remote.connection import SSH_CONFIG_VARIABLE
from ssh_bench import LABEL, Server, ssh_server
from surroundings import copy_project, run_snakemake

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ATTEMPT = "attempt_2"
THERE = f"results/records/{LABEL}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def edited(path: Path, **changes: object) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values.update(changes)
    path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


@pytest.fixture(scope="module")
def project(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a host entry, and a study of one attempt that measures as little as its rules allow."""
    place = copy_project(tmp_path_factory.mktemp("remote") / "project")
    entry = {
        "label": LABEL,
        "ssh": server.destination,
        "folder": str(server.folder),
        "executables": {bench.SERVER: str(bench.program(bench.SERVER))},
    }
    edited(place / "config" / "config.yaml", host="here", measure_here=False, hosts=[entry])
    path = place / "config" / "studies" / "mini.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["default_engine"] = bench.SERVER
    study["protocol"] |= {
        "predict_tokens": 8, "warmup_tokens": 2, "load_predict_tokens": 4, "looks": [2], "max_blocks": 2,
        "start_timeout_s": 300, "request_timeout_s": 300,
    }  # fmt: skip
    kept = study["attempts"][ATTEMPT] | {"measure": [bench.SERVER], "load": [bench.SERVER]}
    kept["arms"] = ["baseline", "draft"]
    kept["memory_budgets_bytes"] = [4 * 2**30]
    study["attempts"][ATTEMPT] = kept
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return place


def snakemake(project: Path, server: Server, *targets: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FINDINGS_CACHE": str(bench.cache()), SSH_CONFIG_VARIABLE: str(server.config)}
    return run_snakemake(project, environment, *targets, timeout_s=1800)


def test_an_attempt_is_measured_on_another_machine_and_its_records_are_that_machines(
    server: Server, project: Path
) -> None:
    bench.model(bench.TARGET)
    done = snakemake(project, server, ATTEMPT)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {
        "host.json",
        f"probes/{bench.SERVER}.json",
        f"precheck/{ATTEMPT}/{bench.SERVER}/draft.json",
        f"loads/{ATTEMPT}/{bench.SERVER}/draft.json",
        f"measure/{ATTEMPT}/{bench.SERVER}/session.json",
    }
    for name in records:
        record = read_record(project / THERE / name)
        assert record.outcome is Outcome.OK, (name, record.reason)
        assert record.host == LABEL
    blocks = sorted((project / THERE / "measure").rglob("block-*.json"))
    assert len(blocks) >= 2
    expected = program_sha256(bench.engine(bench.SERVER), bench.program(bench.SERVER))
    for path in blocks:
        arms = read_record(path).detail["arms"]
        assert set(arms) == {"baseline", "draft"}
        for arm in arms.values():
            assert arm["outcome"] == "ok", arm["reason"]
            assert arm["engine_sha256"] == expected
            assert arm["engine_cpu_s"] > 0
            assert arm["rss_bytes"] > 0
            assert 0 <= arm["other_cpu_share"] <= 1
        assert arms["draft"]["engagement"] == "engaged_with_drafts"
    here = {
        path.relative_to(project / "results/records/here").parts[0]
        for path in (project / "results/records/here").rglob("*.json")
    }
    assert not here & {"probes", "loads", "measure", "precheck"}
    for path in (project / THERE).rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert server.destination not in text, path
        assert str(server.folder) not in text, path
    assert (project / "results/attempts" / ATTEMPT / "verdicts.parquet").exists()
    assert not server.processes()


def test_the_same_command_again_has_nothing_to_do(server: Server, project: Path) -> None:
    done = snakemake(project, server, ATTEMPT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr


def test_a_machine_that_is_off_is_an_outcome_and_is_asked_again_when_it_is_on(server: Server, project: Path) -> None:
    probe = f"{THERE}/probes/{bench.SERVER}.json"
    whole = server.config.read_text()
    (project / probe).unlink()
    try:
        server.with_config("config", Port="1")
        done = snakemake(project, server, probe)
        assert done.returncode == 0, done.stdout + done.stderr
        record = read_record(project / probe)
        assert (record.outcome, "does not answer" in record.reason) == (Outcome.UNAVAILABLE, True)
    finally:
        server.config.write_text(whole)
    done = snakemake(project, server, probe)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_record(project / probe).outcome is Outcome.OK

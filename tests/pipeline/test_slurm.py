"""The workflow on a Slurm cluster: measuring jobs land on their nodes, and what they record is what is recorded here.

The cluster is a real one that this file starts (tests/slurm_cluster.py). The attempt is the smallest that measures: the
tiny Gemma 4 pair, two short blocks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import slurm_cluster
from findings.cache import cache_root
from findings.cluster import end_left_jobs
from findings.host import usable_cores
from findings.records import read_record
from slurm_cluster import Cluster, ClusterError, Node, cluster
from surroundings import copy_project

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENGINE, ATTEMPT = "llama.cpp-b11549", "attempt_4"
HERE = "here"
# Label -> where its jobs go, and the node that this means.
HOSTS: dict[str, dict[str, str | int]] = {
    "fast-box": {"constraint": "big", "gpu": 1, "gpu_model": "p100"},
    "old-box": {"nodelist": "node-b", "partition": "all"},
}
NODE_OF = {"fast-box": "node-a", "old-box": "node-b"}
MEASURED = ("host", "probe", "load", "measure")
# What differs between two runs of the same thing: the machine's name, clocks, noise, and what hashes or repeats these.
TIMES = ["started", "prompt_ms", "predicted_ms", "tg_tokens_per_s", "pp_tokens_per_s", "engine_cpu_s", "engine_wall_s"]
TIMES += ["other_cpu_share", "rss_bytes", "seconds", "ln_ratio", "arm_tg_tokens_per_s", "baseline_tg_tokens_per_s"]
NOISE = ["record", "session", "log_tail", "log_sha256", "detail_json", "reason", "command", "host"]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """Two nodes that differ by a feature and by the cores that their jobs may use."""
    reason = slurm_cluster.missing()
    if reason:
        pytest.skip(f"SKIPPED, SLURM IS NOT TESTED HERE: {reason}")
    try:
        with cluster({"node-a": Node("big", cpus=2, gpu="p100"), "node-b": Node("small", cpus=1)}) as made:
            yield made
            folder = made.folder
    except ClusterError as error:
        pytest.skip(f"SKIPPED, SLURM IS NOT TESTED HERE: {error}")
    assert not slurm_cluster.left(folder)


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(content), allow_unicode=True), encoding="utf-8")


def small_project(place: Path) -> Path:
    """The project with one attempt, one engine, two blocks of two arms, and a label of its own."""
    project = copy_project(place)
    path = project / "config" / "studies" / "mini.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    attempt = study["attempts"][ATTEMPT] | {"load": [ENGINE], "measure": [ENGINE], "arms": ["baseline", "mtp_dense"]}
    del attempt["convert"]
    short = {"predict_tokens": 8, "warmup_tokens": 4, "load_predict_tokens": 8, "looks": [2], "max_blocks": 2}
    study |= {"threads": 1, "attempts": {ATTEMPT: attempt}, "protocol": study["protocol"] | short}
    write_yaml(path, study)
    path = project / "config" / "config.yaml"
    write_yaml(path, yaml.safe_load(path.read_text(encoding="utf-8")) | {"host": HERE, "imports": []})
    return project


def snakemake(
    project: Path, environment: Mapping[str, str], *arguments: str, text: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("snakemake")), *arguments],
        cwd=project,
        env=dict(environment) | {"FINDINGS_CACHE": str(cache_root())},
        capture_output=True,
        text=text,
        timeout=400,
        check=False,
    )


def on_cluster(project: Path, running: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The profile's interval between questions is for jobs of minutes, not of seconds.
    often = ["--slurm-init-seconds-before-status-checks", "5", "--seconds-between-status-checks", "5"]
    profile = ["--profile", "profiles/slurm", *often, "--slurm-keep-successful-logs"]
    return snakemake(project, running.environment(os.environ), *profile, *arguments)


@pytest.fixture(scope="module")
def measured_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = small_project(tmp_path_factory.mktemp("local") / "project")
    done = snakemake(project, os.environ, "--cores", "1", ATTEMPT)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.fixture(scope="module")
def measured_there(running: Cluster, measured_here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same project, sent to the two nodes; what was fetched and converted is there already."""
    project = tmp_path_factory.mktemp("cluster") / "project"
    shutil.copytree(measured_here, project, symlinks=True)
    for name in ("probes", "precheck", "loads", "measure"):
        shutil.rmtree(project / "results" / "records" / HERE / name)
    shutil.rmtree(project / "results" / "attempts")
    path = project / "config" / "config.yaml"
    hosts = [{"label": label, "slurm": place} for label, place in HOSTS.items()]
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) | {"measure_here": False, "hosts": hosts}
    write_yaml(path, settings)
    done = on_cluster(project, running, ATTEMPT)
    logs = "\n".join(log.read_text() for log in (project / ".snakemake" / "slurm_logs").rglob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return project


def test_every_measuring_job_of_a_host_and_no_other_ran_on_its_node(running: Cluster, measured_there: Path) -> None:
    listed = running.ask("squeue", "--states=all", "--noheader", "--format=%k|%N|%T|%h|%i|%Z")
    jobs = [line.split("|") for line in listed.splitlines() if line.endswith(f"|{measured_there}")]
    found = {}
    for comment, node, state, shared, number, _ in jobs:
        match = re.fullmatch(r"rule_([a-z]+)_wildcards_(fast-box|old-box).*", comment)
        assert match, f"{comment} is no job for a node"
        assert (state, shared) == ("COMPLETED", "NO"), comment
        asked = running.ask("scontrol", "show", "job", number)
        assert ("TresPerJob=gres:gpu:p100:1" in asked) == (match[2] == "fast-box"), asked
        found[match[1], match[2]] = node
    assert found == {(rule, label): node for rule in MEASURED for label, node in NODE_OF.items()}


@pytest.mark.parametrize("label", HOSTS)
def test_the_records_of_a_host_were_written_on_its_node(measured_there: Path, label: str) -> None:
    records = measured_there / "results" / "records" / label
    names = sorted(str(path.relative_to(records)) for path in records.rglob("*.json"))
    session = f"measure/{ATTEMPT}/{ENGINE}"
    assert {"host.json", f"{session}/session.json", f"{session}/run-001/block-002.json"} <= set(names)
    assert f"loads/{ATTEMPT}/{ENGINE}/mtp_dense.json" in names
    for path in records.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert json.loads(text).get("host", label) == label
        assert "node-a" not in text and "node-b" not in text, "names of machines are not published"
    cores = {"node-a": min(2, usable_cores()), "node-b": 1}
    assert read_record(records / "host.json").detail["cores"] == cores[NODE_OF[label]]
    for step in (f"measure-{label}-{ATTEMPT}-{ENGINE}", f"load-{label}-{ATTEMPT}-{ENGINE}-mtp_dense"):
        said = (measured_there / "results" / "logs" / f"{step}.log").read_text(encoding="utf-8")
        assert re.search(rf"on node {NODE_OF[label]}, job \d+", said), said


def test_the_submitting_machine_has_its_own_facts_and_measured_nothing(measured_there: Path) -> None:
    records = measured_there / "results" / "records" / HERE
    assert read_record(records / "host.json").host == HERE
    assert not [name for name in ("probes", "loads", "measure") if (records / name).exists()]


@pytest.mark.parametrize("label", HOSTS)
@pytest.mark.parametrize("name", ["measurements", "outcomes", "effects"])
def test_the_tables_are_those_of_a_local_run_but_for_times_and_names(
    measured_here: Path, measured_there: Path, label: str, name: str
) -> None:
    def rows(project: Path, host: str) -> list[str]:
        table = pd.read_parquet(project / "results" / "attempts" / ATTEMPT / f"{name}.parquet")
        mine = table[table["host"] == host]
        if "kind" in mine:
            mine = mine[mine["kind"].isin(["probe", "precheck", "load", "session", "block"])]
        # What a host writes itself; models belong to the machine that fetched them.
        kept = mine.drop(columns=[*TIMES, *NOISE], errors="ignore")
        return sorted(map(str, kept.to_dict("records")))

    there = rows(measured_there, label)
    assert len(there) > 1
    assert there == rows(measured_here, HERE)


def test_texts_and_drafts_are_part_of_that_comparison(measured_there: Path) -> None:
    table = pd.read_parquet(measured_there / "results" / "attempts" / ATTEMPT / "measurements.parquet")
    assert {"text_sha256", "draft_tokens", "accepted_tokens", "outcome"} <= set(table.columns) - {*TIMES, *NOISE}
    assert table["text_sha256"].str.len().min() == 64
    assert (table[table["arm"] == "mtp_dense"]["draft_tokens"] > 0).any()


def test_a_second_run_has_nothing_to_do(running: Cluster, measured_there: Path) -> None:
    done = on_cluster(measured_there, running, "--dry-run", ATTEMPT)
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr


def test_a_run_that_does_not_fit_its_hosts_says_what_to_change(
    running: Cluster, measured_there: Path, tmp_path: Path
) -> None:
    done = snakemake(measured_there, os.environ, "--cores", "1", ATTEMPT, "--forcerun", "load")
    assert done.returncode != 0
    assert "hosts[fast-box].slurm: its jobs go through Slurm; add --profile profiles/slurm" in done.stderr
    done = on_cluster(small_project(tmp_path / "project"), running, ATTEMPT)
    assert done.returncode != 0
    assert "here measures without Slurm" in done.stderr and "measure_here: false" in done.stderr
    assert not list((tmp_path / "project" / "results").rglob("*.json"))


def test_jobs_of_a_killed_run_are_ended_and_no_others(running: Cluster, tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in running.environment(os.environ).items():
        monkeypatch.setenv(name, value)
    folder, other = tmp_path / "killed", tmp_path / "other"
    (folder / ".snakemake" / "slurm_logs").mkdir(parents=True)
    other.mkdir()

    def submit(place: Path, *options: str) -> str:
        command = ["sbatch", "--parsable", f"--chdir={place}", "--output=/dev/null", *options, "--wrap=sleep 300"]
        return running.ask(*command).strip()

    left, own, foreign = submit(folder, "--comment=rule_measure"), submit(folder), submit(other, "--comment=rule_load")
    waiting = submit(folder, "--comment=rule_load", "--begin=now+1hour")
    try:
        assert sorted(end_left_jobs(folder)) == sorted([left, waiting])
        active = set(running.ask("squeue", "--noheader", "--format=%i").split())
        assert {own, foreign} <= active and not {left, waiting} & active
        assert end_left_jobs(folder) == []
    finally:
        running.ask("scancel", own, foreign)
        deadline = time.monotonic() + 60
        while running.ask("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.2)

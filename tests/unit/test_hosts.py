"""Further machines in a run: what is checked of their entries, and what of a study each one gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from findings import plan
from findings.config import ConfigurationError, RemoteHost, load_configuration
from findings.job import Job

ROOT = Path(__file__).parents[2]
CUDA = "llama.cpp-b9041-cuda"
BOX: dict[str, Any] = {
    "label": "gtx-1050",
    "ssh": "user@box",
    "folder": "/opt/llama",
    "executables": {CUDA: "b9041/llama-server"},
}
NODE: dict[str, Any] = {"label": "node-a", "slurm": {"constraint": "p100"}}


def pascal(*hosts: dict[str, Any], **more: Any) -> Any:
    return load_configuration(ROOT, {"study": "pascal", "hosts": list(hosts), **more})


def refused(*hosts: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ConfigurationError) as found:
        pascal(*hosts, **more)
    return str(found.value)


def test_a_host_over_ssh_gets_what_it_has_an_executable_for_and_nothing_else():
    configuration = pascal(BOX)
    theirs = plan.on_host(configuration, configuration.settings.hosts[0])
    records = plan.measured_records(theirs, "attempt_1")
    assert f"measure/attempt_1/{CUDA}/session.json" in records
    assert records[0] == "host.json"
    # The Vulkan build that the switch needs is not there, and attempt 4 is measured with a newer build.
    assert plan.measured_records(theirs, "backend_switch") == []
    assert not any(path.startswith("measure/") for path in plan.measured_records(theirs, "attempt_4"))


def test_a_node_gets_the_whole_study_and_a_restricted_one_its_engines():
    configuration = pascal(NODE, {**NODE, "label": "node-b", "engines": [CUDA]})
    whole, part = (plan.on_host(configuration, host) for host in configuration.settings.hosts)
    for attempt in configuration.study.attempts:
        assert plan.measured_records(whole, attempt) == plan.measured_records(configuration, attempt)
    assert {name for item in part.study.attempts.values() for name in item.measure} == {CUDA}


def test_nothing_is_in_both_halves_of_an_attempt_but_the_machine():
    configuration = pascal()
    for attempt in configuration.study.attempts:
        shared, measured = (set(half(configuration, attempt)) for half in (plan.shared_records, plan.measured_records))
        assert not shared & measured
        assert {"host.json"} | shared | measured == set(plan.attempt_records(configuration, attempt))


def test_ways_to_a_host():
    configuration = pascal(BOX, NODE)
    assert plan.by_ssh(configuration, "gtx-1050")
    assert not plan.by_slurm(configuration, "gtx-1050")
    assert plan.by_slurm(configuration, "node-a")
    assert plan.host_of(configuration, "elsewhere") is None


def test_a_job_knows_the_machine_that_its_records_belong_to():
    configuration = pascal(BOX)
    local = Path("results/records/here")
    remote = Job(configuration, local.with_name("gtx-1050"), Path("cache"), local).remote
    assert isinstance(remote, RemoteHost)
    assert remote.ssh == "user@box"
    assert Job(configuration, local, Path("cache"), local).remote is None


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({**BOX, "slurm": {"partition": "gpu"}}, "both ssh and slurm is given"),
        ({"label": "lonely"}, "neither ssh nor slurm is given"),
        ({"label": "lonely", "slurm": {"partition": ""}}, "neither ssh nor slurm is given"),
        ({**BOX, "folder": "llama"}, "hosts[gtx-1050].folder: 'llama' is no absolute path"),
        ({**BOX, "executables": {}}, "hosts[gtx-1050].executables: none is given"),
        ({**BOX, "executables": {"llama.cpp-b1": "x"}}, "'llama.cpp-b1' is not an engine"),
        ({**BOX, "executables": {"llama.cpp-b11549": "x"}}, "runs inside Python"),
        ({**BOX, "executables": {"llama.cpp-b8951-vulkan": "x"}}, "study pascal runs none of its engines"),
        ({**NODE, "folder": "/opt"}, "folder and executables belong to ssh"),
        ({**BOX, "ssh": "-oProxyCommand=touch x"}, "hosts[0].ssh"),
        ({**BOX, "ssh": "user@box; rm"}, "hosts[0].ssh"),
        ({**BOX, "ssh": "us er@box"}, "hosts[0].ssh"),
        ({**BOX, "folder": "/opt/../etc"}, "hosts[0].folder"),
        ({**BOX, "label": "Their Machine"}, "hosts[0].label"),
        ({**NODE, "slurm": {"constraint": "a;b"}}, "hosts[0].slurm.constraint"),
        ({**NODE, "slurm": {"nodelist": "gpu[01-04]"}}, "the name of one node"),
        ({**NODE, "slurm": {"gpu": -1}}, "hosts[0].slurm.gpu"),
    ],
)
def test_an_entry_that_cannot_work_is_refused_with_its_place(host: dict[str, Any], said: str):
    assert said in refused(host)


def test_labels_are_of_their_own():
    assert "is there 2 times" in refused(BOX, {**NODE, "label": "gtx-1050"})
    assert "is this machine's own label" in refused(BOX, host="gtx-1050")


def test_a_run_that_would_measure_nowhere_is_refused():
    assert "nothing would be measured" in refused(measure_here=False)
    assert pascal(BOX, measure_here=False).settings.measure_here is False

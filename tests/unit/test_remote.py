"""What is sent to another machine's shell and what is read back from it, without any connection."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from findings.config import Backend, Driver, Engine, RemoteHost
from findings.engine.failure import EngineFailure
from findings.gates import QUIET_LIMIT
from findings.machine import Sample, Snapshot, load_report
from findings.programs import hash_of_program
from findings.records import Kind, Outcome, Record, write_record
from findings.remote.connection import (
    SCRIPTS,
    SSH_CONFIG_VARIABLE,
    Connection,
    RemoteFailure,
    assigned,
    bootstrap,
    compose,
    connection_to,
    explain_ssh,
)
from findings.remote.counters import Units, parse_counters, parse_gpu
from findings.remote.files import ensure_model_there
from findings.remote.machine import parse_facts
from findings.remote.programs import parse_hashes, program_there
from findings.remote.site import RemoteSite
from findings.site import Here, site_of
from findings.stale import unreached_records

NASTY = 'it\'s $HOME `id` "x" \\ ; rm -rf / & | > ü\n* ~ -n'
SHELLS = [name for name in ("dash", "bash", "busybox", "zsh", "ksh", "mksh") if shutil.which(name)]
CONNECTION = Connection("there", "me@machine", "/opt/llama")


def shell(name: str) -> list[str]:
    return [name, "sh"] if name == "busybox" else [name]


def test_values_reach_a_shell_unchanged_whatever_is_in_them() -> None:
    script = assigned({"a": NASTY, "b": "", "n": 7}) + 'printf \'%s|%s|%s\' "$a" "$b" "$n"\n'
    done = subprocess.run(["sh", "-s"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout.decode() == f"{NASTY}||7"


def test_arguments_reach_a_shell_one_by_one() -> None:
    words = [NASTY, "--flag", "", "-e", "$(id)"]
    script = compose([], {}, words) + "for word; do printf '<%s>' \"$word\"; done\n"
    done = subprocess.run(["sh", "-s"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"<{word}>" for word in words)


@pytest.mark.parametrize("login", SHELLS)
def test_a_login_shell_reads_exactly_the_script_and_leaves_the_rest_of_the_stream(login: str) -> None:
    script = f"printf 'ü: %s\\n' {len(NASTY)}\ncat\n"
    done = subprocess.run(
        [*shell(login), "-c", bootstrap(script)],
        input=script.encode() + b"bytes\0after",
        capture_output=True,
        check=True,
    )
    assert done.stdout == f"ü: {len(NASTY)}\nbytes\0after".encode()


def test_a_command_line_holds_neither_values_nor_the_folder(tmp_path: Path) -> None:
    script = compose(
        ["begin", "lifeline", "serve"], {"folder": "/opt/llama", "key": "markedkey"}, ["--model", "marked"]
    )
    line = " ".join(CONNECTION.argv(script, tmp_path / "log", (5, 6)))
    assert "marked" not in line
    assert "/opt/llama" not in line
    assert "-L 127.0.0.1:5:127.0.0.1:6" in line
    assert "BatchMode=yes" in line
    assert "-- me@machine exec sh -c" in line
    assert "-F" not in line.split()


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.glob("*.sh")))
@pytest.mark.parametrize("login", SHELLS)
def test_every_script_is_one_for_every_shell(name: str, login: str) -> None:
    done = subprocess.run([*shell(login), "-n", str(SCRIPTS / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "destination",
    ["-oProxyCommand=touch /tmp/x", "-lroot", "a b", "", "x;id", "me@-oProxyCommand=id", "$(id)", "x\n-y"],
)
def test_a_destination_that_ssh_would_take_for_something_else_is_refused(destination: str) -> None:
    with pytest.raises(ValueError, match=r"hosts\[there\]\.ssh"):
        Connection("there", destination, "/opt/llama")


@pytest.mark.parametrize("folder", ["opt/llama", "", "~/llama", "/opt/ll\nama"])
def test_a_folder_that_is_not_absolute_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match=r"hosts\[there\]\.folder"):
        Connection("there", "me@machine", folder)


def test_another_configuration_of_ssh_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    host = RemoteHost("there", ssh="me@machine", folder="/opt/llama/")
    monkeypatch.delenv(SSH_CONFIG_VARIABLE, raising=False)
    assert connection_to(host) == CONNECTION
    monkeypatch.setenv(SSH_CONFIG_VARIABLE, "/x/config")
    assert connection_to(host).argv("true", Path("log"))[3:5] == ["-F", "/x/config"]


@pytest.mark.parametrize(
    ("words", "cause", "mend"),
    [
        ("ssh: Could not resolve hostname machine: Name or service not known", "unknown_name", "cannot be resolved"),
        ("ssh: connect to host 10.1.2.3 port 22: Connection refused", "unreachable", "is it on"),
        ("ssh: connect to host machine port 22: No route to host", "unreachable", "is it on"),
        ("me@machine: Permission denied (publickey,password).", "key_refused", "ssh-copy-id"),
        ("No ED25519 host key is known for machine\nHost key verification failed.", "host_key_unknown", "fingerprint"),
        ("@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "host_key_changed", "-R"),
        ("/h/config: line 3: Bad configuration option: foo", "configuration", "ssh -G"),
        ("bind [127.0.0.1]:5: Address already in use\nCould not request local forwarding.", "local_port", "again"),
        ("something new about machine 10.1.2.3", "ssh", "try ssh by hand"),
    ],
)
def test_what_ssh_says_becomes_a_sentence_with_the_mend_and_without_names(words: str, cause: str, mend: str) -> None:
    failure = explain_ssh("there", 255, words)
    assert failure.outcome is Outcome.UNAVAILABLE
    assert failure.cause == cause
    assert mend in failure.reason
    assert failure.reason.startswith("host there: ")
    assert "10.1.2.3" not in failure.reason
    assert "machine:" not in failure.reason


STAT = "42 (a ) odd (name) S 1 42 42 0 -1 4194304 1 2 3 4 300 100 20 5 20 0 9 0 1 2 3"
PROC = f"""1000.25 1900.00
cpu  1000 20 300 9000 50 7 3 40 999 5
MemTotal:       8000 kB
MemAvailable:   2000 kB
oom_kill 3
pswpin 2
pswpout 1
{STAT}
VmHWM:\t     700 kB
VmRSS:\t     500 kB
VmSwap:\t       4 kB
"""


def test_counters_of_another_machine() -> None:
    found = parse_counters(PROC, Units(cores=4, ticks=100, page=4096), "1500, 61, 75.20, 1024, 0x0000000000000004")
    assert found is not None
    assert found.uptime_s == 1000.25
    assert found.busy_s == pytest.approx((1000 + 20 + 300 + 7 + 3 + 40) / 100)
    assert found.engine_cpu_s == pytest.approx(4.25)
    assert (found.rss_bytes, found.peak_rss_bytes, found.engine_swap_bytes) == (512000, 716800, 4096)
    assert (found.swapped_bytes, found.oom_kills, found.available_share) == (3 * 4096, 3, 0.25)
    assert found.gpu == {
        "sm_clock_mhz": 1500, "temperature_c": 61, "power_w": 75.2, "memory_used_bytes": 2**30, "throttle_mask": 4
    }  # fmt: skip


def test_children_of_an_engine_count_and_an_engine_that_is_gone_does_not() -> None:
    child = STAT.replace("42 (a ) odd (name)", "43 (child)")
    both = parse_counters(PROC + child + "\nVmRSS:\t 100 kB\n", Units())
    assert both is not None
    assert both.engine_cpu_s == pytest.approx(8.5)
    assert both.rss_bytes == 614400
    assert parse_counters(PROC.replace(STAT, ""), Units()) is None
    assert parse_counters(PROC.replace(") S 1", ") Z 1"), Units()) is None
    assert parse_counters("", Units()) is None


@pytest.mark.parametrize("line", ["", "nonsense", "No devices were found", "a, b, c, d, e"])
def test_no_reading_of_a_gpu(line: str) -> None:
    assert parse_gpu(line) is None


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    assert parse_gpu("[N/A], 50, [Not Supported], 10, [N/A]") == {
        "temperature_c": 50, "memory_used_bytes": 10 * 2**20
    }  # fmt: skip


def test_a_machine_that_stops_telling_is_not_quiet() -> None:
    start, end = Snapshot(10.0, 5.0, 1.0), Snapshot(20.0, 14.0, 9.0)
    quiet = load_report(start, end, 2, [Sample(7, 0.5), Sample(9, 0.4)])
    assert (quiet.wall_s, quiet.engine_cpu_s, quiet.other_cpu_share, quiet.rss_bytes) == (10.0, 8.0, 0.05, 9)
    assert quiet.machine == {"memory_available_share": 0.4}
    for pair in ((None, end), (start, None)):
        assert load_report(*pair, 2, []).other_cpu_share > QUIET_LIMIT


FACTS = """os.NAME="Debian GNU/Linux"
os.VERSION_ID="12"
kernel=6.1.0-13-amd64
machine=x86_64
cores=8
cpu=Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz
memory=16000000 kB
gpu=550.54.14, 4096, 6.1, NVIDIA GeForce GTX 1050, mobile
gpu=470.1, 2048, , Quadro K600
gpu=nonsense
"""


def test_facts_of_another_machine() -> None:
    facts = parse_facts("gtx1050", FACTS)
    assert (facts.label, facts.os, facts.cores, facts.memory_bytes) == (
        "gtx1050",
        "Debian GNU/Linux 12",
        8,
        16384000000,
    )
    assert (facts.cpu, facts.python) == ("Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz", "")
    assert facts.versions == {"kernel": "6.1.0", "machine": "x86_64"}
    first, second = facts.gpus
    assert (first.name, first.compute_capability) == ("NVIDIA GeForce GTX 1050, mobile", "6.1")
    assert (first.memory_bytes, first.driver) == (4 * 2**30, "550.54.14")
    assert (second.name, second.compute_capability) == ("Quadro K600", "")


@pytest.mark.parametrize("knows_capability", [True, False])
def test_an_old_nvidia_smi_still_names_its_gpu(knows_capability: bool, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $* in\n"
        + ("" if knows_capability else "*compute_cap*) echo 'Field \"compute_cap\" is not a valid field'; exit 2 ;;\n")
        + "*compute_cap*) echo '580.1, 2048, 6.1, NVIDIA GeForce GTX 1050' ;;\n"
        "*) echo '580.1, 2048, NVIDIA GeForce GTX 1050' ;;\nesac\n"
    )
    tool.chmod(0o755)
    done = subprocess.run(
        ["sh", str(SCRIPTS / "describe.sh")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    (gpu,) = parse_facts("there", done.stdout).gpus
    assert (gpu.name, gpu.memory_bytes, gpu.driver) == ("NVIDIA GeForce GTX 1050", 2**31, "580.1")
    assert gpu.compute_capability == ("6.1" if knows_capability else "")


def test_hashes_are_combined_as_on_this_machine() -> None:
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    program = PurePosixPath("/opt/llama/bin/llama-server")
    text = f"{a}  -\n{c}  /opt/llama/bin/libz z.so\n{b}  /opt/llama/bin/liba.so.1\n"
    beside = [(PurePosixPath("/x/liba.so.1"), b), (PurePosixPath("/x/libz z.so"), c)]
    assert parse_hashes(CONNECTION, program, text) == hash_of_program(a, "llama-server", beside)
    assert parse_hashes(CONNECTION, program, f"{a}  -\n") == a
    for said in ("", "@absent\n", "@notexecutable\n", "nothing\n"):
        with pytest.raises(RemoteFailure):
            parse_hashes(CONNECTION, program, said)


def test_an_executable_is_below_the_folder_or_where_it_says() -> None:
    assert program_there(CONNECTION, "b9041/bin/llama-server") == PurePosixPath("/opt/llama/b9041/bin/llama-server")
    assert program_there(CONNECTION, "/usr/bin/llama-server") == PurePosixPath("/usr/bin/llama-server")


def test_a_sha256_that_is_none_names_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        ensure_model_there(CONNECTION, tmp_path / "m.gguf", "../../etc", print)


def test_where_a_hosts_engines_run(tmp_path: Path) -> None:
    assert site_of(None, tmp_path, tmp_path) == Here(tmp_path, tmp_path)
    assert site_of(RemoteHost("node", slurm={"partition": "p"}), tmp_path, tmp_path) == Here(tmp_path, tmp_path)
    site = site_of(RemoteHost("there", ssh="me@machine", folder="/opt/llama"), tmp_path, tmp_path)
    assert isinstance(site, RemoteSite)
    with pytest.raises(EngineFailure, match="no executable of some-engine is named"):
        site.program(Engine("some-engine", 1, "", Driver.LLAMA_SERVER, Backend.CPU))


def test_what_a_machine_was_asked_for_in_vain_is_asked_again(tmp_path: Path) -> None:
    def put(path: str, kind: Kind, outcome: Outcome) -> None:
        write_record(tmp_path / path, Record(kind, "x", outcome))

    put("host.json", Kind.HOST, Outcome.UNAVAILABLE)
    put("probes/a.json", Kind.PROBE, Outcome.UNAVAILABLE)
    put("probes/b.json", Kind.PROBE, Outcome.CRASHED)
    put("loads/attempt_1/a/draft.json", Kind.LOAD, Outcome.UNAVAILABLE)
    put("measure/attempt_1/a/session.json", Kind.SESSION, Outcome.OK)
    put("measure/attempt_1/a/run-001/block-001.json", Kind.BLOCK, Outcome.UNAVAILABLE)
    found = [str(path.relative_to(tmp_path)) for path in unreached_records(tmp_path)]
    assert found == ["host.json", "loads/attempt_1/a/draft.json", "probes/a.json"]
    assert unreached_records(tmp_path / "no such host") == []

"""A little Slurm cluster of a test's own: munged, slurmctld and one slurmd per node, all on 127.0.0.1.

Nothing of the machine's own Slurm is touched: key, socket, ports, states and configuration lie in one folder, and the
commands find them by SLURM_CONF. Every daemon runs in the foreground below this process, is ended by its id, and ends
with this process also when that is killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from findings.interrupted import with_us

PROGRAMS = ("taskset", "munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")
PACKAGES = "apt-get install slurm-wlm slurm-client munge"
START_S = 60.0
END_S = 20.0
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
MailProg=/bin/true
PlugStackConfig={folder}/plugstack.conf
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=5
GresTypes=gpu
MinJobAge=300
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=UNLIMITED
"""


class ClusterError(Exception):
    """The cluster did not start; the message holds the daemons' own words."""


@dataclass(frozen=True)
class Node:
    """What a node is told to be: a feature that a job's constraint can ask for, the cores that its jobs may use, and a
    kind of GPU, of which it counts one that is not there."""

    feature: str
    cpus: int = 1
    gpu: str = ""


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its folder, and the names of its nodes."""

    folder: Path
    nodes: tuple[str, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` so that commands reach this cluster, without what an outer Slurm job would add."""
        kept = {name: value for name, value in base.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        path = os.pathsep.join([str(self.folder / "bin"), kept.get("PATH", ""), "/usr/sbin", "/sbin"])
        return kept | {"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """The standard output of one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.environment(os.environ), capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def missing() -> str:
    """Why no cluster can be started on this machine and what to do about it; empty where one can."""
    if os.geteuid() != 0:
        return "a Slurm cluster for the tests is started by root only; run them as root, for example in a container"
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"{', '.join(absent)} not found; on Debian: {PACKAGES}" if absent else ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextlib.contextmanager
def cluster(nodes: Mapping[str, Node], memory_mb: int = 4096) -> Iterator[Cluster]:
    """A cluster of these nodes by name; gone at the end, with its jobs.

    Raises ClusterError where it does not come up.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(_end_left, folder)
        _configure(folder, nodes, memory_mb)
        configuration = str(folder / "slurm.conf")
        running = Cluster(folder, tuple(nodes))
        environment = running.environment(os.environ)
        daemons = [
            # Slurm and munge speak IPv4 and local sockets only here.
            _munged(folder),
            ["slurmctld", "-D", "-i", "-f", configuration],
            *(
                ["taskset", "--cpu-list", _cores(made.cpus), "slurmd", "-D", "-N", node, "-f", configuration]
                for node, made in nodes.items()
            ),
        ]
        processes = []
        for number, command in enumerate(daemons):
            processes.append(stack.enter_context(_daemon(command, folder / f"daemon-{number}.log", environment)))
            if number == 0:
                _wait_for((folder / "munge.socket").exists, processes, folder)
        _wait_for(lambda: _all_idle(running), processes, folder)
        # Before the daemons: a job that was left is ended by Slurm itself.
        stack.callback(_cancel_all, running)
        yield running


def _cores(count: int) -> str:
    """Some of the cores that this process may use, as taskset wants them: the jobs of a node inherit them."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))[:count]))


def _configure(folder: Path, nodes: Mapping[str, Node], memory_mb: int) -> None:
    folder.chmod(0o755)
    controller, *ports = free_ports(1 + len(nodes))
    lines = [
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={made.cpus} RealMemory={memory_mb}"
        f" Feature={made.feature}{f' Gres=gpu:{made.gpu}:1' if made.gpu else ''} State=UNKNOWN"
        for (node, made), port in zip(nodes.items(), ports, strict=True)
    ]
    text = CONFIGURATION.format(folder=folder, controller=controller, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "plugstack.conf").write_text("", encoding="utf-8")
    counted = [f"NodeName={node} Name=gpu Type={made.gpu} File=/dev/null\n" for node, made in nodes.items() if made.gpu]
    (folder / "gres.conf").write_text("".join(counted), encoding="utf-8")
    (folder / "state").mkdir(mode=0o700)
    for node in nodes:
        (folder / f"spool-{node}").mkdir(mode=0o755)
    _wrap_srun(folder)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)


def _wrap_srun(folder: Path) -> None:
    """Snakemake takes every SLURM_ variable from a job before it calls srun, which then looks for a machine's file."""
    real = shutil.which("srun") or "srun"
    wrapper = folder / "bin" / "srun"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {real} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)


def _munged(folder: Path) -> list[str]:
    places = {"key": "key-file", "socket": "socket", "pid": "pid-file", "log": "log-file", "seed": "seed-file"}
    return ["munged", "--foreground", "--force", *(f"--{name}={folder}/munge.{end}" for end, name in places.items())]


@contextlib.contextmanager
def _daemon(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in the foreground, in a session of its own."""
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            with_us([program, *command[1:]]),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_for(ready: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        ended = [process for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            said = "\n".join(
                f"{log.name}: {log.read_text(encoding='utf-8', errors='replace')[-1500:]}"
                for log in sorted(folder.glob("daemon-*.log"))
            )
            raise ClusterError(f"the Slurm cluster did not come up:\n{said}")
        time.sleep(0.2)


def _all_idle(made: Cluster) -> bool:
    try:
        states = made.ask("sinfo", "--noheader", "--Node", "--format=%N %t").split("\n")
    except (ClusterError, subprocess.TimeoutExpired):
        return False
    return sorted(line.split() for line in states if line) == sorted([node, "idle"] for node in made.nodes)


def left(folder: Path) -> list[psutil.Process]:
    """Processes that belong to the cluster of a folder, whoever their parent is: their environment says so."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("SLURM_CONF") == str(folder / "slurm.conf"):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def _end_left(folder: Path) -> None:
    """Daemons of steps leave their parent; one that still lives when the cluster is gone is killed, by its id."""
    deadline = time.monotonic() + END_S
    while (processes := left(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _cancel_all(made: Cluster) -> None:
    with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
        made.ask("scancel", "--signal=KILL", "--full", f"--user={os.geteuid()}")
        made.ask("scancel", f"--user={os.geteuid()}")

"""An ssh server of the tests' own on 127.0.0.1: own keys, own configuration, a free port, ended by its process id."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from findings.engine.drivers import free_port
from findings.remote.connection import Connection

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
LABEL = "elsewhere"


@dataclass(frozen=True)
class Server:
    """A running sshd; `folder` is what a host entry names, `config` what ssh is given with -F."""

    pid: int
    port: int
    root: Path
    folder: Path
    config: Path

    @property
    def destination(self) -> str:
        return f"{getpass.getuser()}@there"

    def connection(self, folder: Path | None = None, config: Path | None = None) -> Connection:
        return Connection(LABEL, self.destination, str(folder or self.folder), config or self.config)

    def with_config(self, name: str, **changes: str) -> Path:
        """Another configuration of ssh, in which some values differ."""
        values = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "IdentityFile": str(self.root / "key"),
            "UserKnownHostsFile": str(self.root / "known_hosts"),
            **changes,
        }
        fixed = {"IdentitiesOnly": "yes", "IdentityAgent": "none", "GlobalKnownHostsFile": "/dev/null"}
        lines = [f"  {key} {value}" for key, value in {**fixed, **values}.items()]
        path = self.root / name
        path.write_text("\n".join(["Host there", *lines, ""]))
        return path

    def processes(self) -> list[psutil.Process]:
        """Everything that logins on this server have started and that still runs."""
        with_sessions: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FINDINGS_TEST_SERVER") == str(self.port) and process.pid != self.pid:
                    with_sessions.append(process)
            except psutil.Error:
                continue
        return [one for one in with_sessions if one.status() != psutil.STATUS_ZOMBIE]


def key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@contextmanager
def ssh_server(root: Path) -> Iterator[Server]:
    """Start an sshd below `root` and end it with every session of it."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("SKIPPED, NOT TESTED: engines over ssh need sshd and ssh (openssh-server, openssh-client)")
    if os.getuid() == 0:  # sshd's own folder for its helper processes; packages make it at the first start
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    root.mkdir(parents=True, exist_ok=True)
    host_key, user_key = key(root / "host_key"), key(root / "key")
    shutil.copy(user_key.with_suffix(".pub"), root / "authorized_keys")
    port = free_port()
    public = host_key.with_suffix(".pub").read_text().split()
    (root / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    (root / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {host_key}\nAuthorizedKeysFile {root / 'authorized_keys'}\n"
        f"PidFile {root / 'pid'}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 50\n"
        f"SetEnv FINDINGS_TEST_SERVER={port}\n"
    )
    with (root / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(root / "sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_for_port(process, port, root / "sshd.log")
        folder = root / "engine folder"  # with a space, as people have them
        folder.mkdir(exist_ok=True)
        server = Server(process.pid, port, root, folder, root / "config")
        server.with_config("config")
        yield server
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(timeout=20)
        for one in family:
            try:
                one.kill()
            except psutil.Error:
                continue


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.skip(f"SKIPPED, NOT TESTED: sshd does not start here: {log.read_text().strip()[-300:]}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("sshd does not listen")

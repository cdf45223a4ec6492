"""What another machine is, in the shape of host.HostFacts."""

from __future__ import annotations

import re
import shlex

from findings.host import Gpu, HostFacts
from findings.remote.connection import Connection


def facts_there(connection: Connection) -> HostFacts:
    """Facts of the machine. Raises RemoteFailure."""
    answer = connection.run("describe")
    return parse_facts(connection.label, answer.stdout.decode("utf-8", "replace"))


def parse_facts(label: str, text: str) -> HostFacts:
    """HostFacts from what describe.sh prints; there is no Python on that machine to name."""
    facts: dict[str, str] = {}
    gpus: list[Gpu] = []
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "gpu":
            gpu = _gpu(value)
            if gpu is not None:
                gpus.append(gpu)
        elif name not in facts:
            facts[name] = value.strip()
    name, version = _unquoted(facts.get("os.NAME", "")), _unquoted(facts.get("os.VERSION_ID", ""))
    memory = facts.get("memory", "").split()
    cores = facts.get("cores", "")
    return HostFacts(
        label=label,
        os=f"{name or 'Linux'} {version}".strip(),
        python="",
        cpu=facts.get("cpu") or facts.get("machine", ""),
        cores=int(cores) if cores.isdecimal() else 1,
        memory_bytes=int(memory[0]) * 1024 if memory and memory[0].isdecimal() else 0,
        gpus=tuple(gpus),
        versions={"kernel": facts.get("kernel", "").split("-")[0], "machine": facts.get("machine", "")},
    )


def _unquoted(value: str) -> str:
    """A value of os-release (os-release(5): quoted as in a shell)."""
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _gpu(line: str) -> Gpu | None:
    """`driver, MiB, compute capability or nothing, name`; a name may hold anything, so it is last."""
    words = [word.strip() for word in line.split(",", 3)]
    if len(words) != 4 or not words[1].isdecimal():
        return None
    capability = words[2] if re.fullmatch(r"\d+\.\d+", words[2]) else ""
    return Gpu(words[3], capability, int(words[1]) * 2**20, words[0])

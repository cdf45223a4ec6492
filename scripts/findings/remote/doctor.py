"""What doctor says about machines over ssh: whether each can be used, what it is, and what its executables answer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from findings.config import Configuration, RemoteHost
from findings.engine.failure import EngineFailure
from findings.engine.probe import probe_features
from findings.host import HostFacts
from findings.remote.connection import RemoteFailure
from findings.remote.machine import facts_there
from findings.remote.programs import asker
from findings.remote.site import RemoteSite

PROBE_SECONDS = 20.0


def machines_over_ssh(configuration: Configuration) -> list[str]:
    """Lines about every configured machine that is reached over ssh; none where there is none."""
    lines: list[str] = []
    for host in configuration.settings.hosts:
        if host.ssh:
            lines += _machine(host, configuration)
    return ["", "Machines over ssh", *lines] if lines else []


def _machine(host: RemoteHost, configuration: Configuration) -> Iterable[str]:
    try:
        site = RemoteSite.of(host)
        facts = facts_there(site.connection)
    except RemoteFailure as failure:
        return [f"  {host.label}: cannot be used: {failure.reason}"]
    return [_described(facts), *(line for name in host.executables for line in _engine(site, name, configuration))]


def _described(facts: HostFacts) -> str:
    gpus = [f"{gpu.name}, compute capability {gpu.compute_capability or 'not told'}" for gpu in facts.gpus]
    memory = f"{facts.memory_bytes / 2**30:.1f} GiB"
    return f"  {facts.label}: {'; '.join([f'{facts.os}, {facts.cpu}, {facts.cores} cores, {memory}', *gpus])}"


def _engine(site: RemoteSite, name: str, configuration: Configuration) -> list[str]:
    """What one executable there answers when it is asked for its version and devices."""
    engine = configuration.engines[name]
    try:
        program = site.program(engine)
        ask = asker(site.connection, PurePosixPath(program))
        features, _ = probe_features(engine, Path(program), PROBE_SECONDS, ask)
    except EngineFailure as failure:
        return [f"    {name}: {failure.outcome.value}: {failure.reason}"]
    build = f", build {features.build}" if features.build else ""
    devices = [f"      device {one['name']}: {one.get('description', '')}" for one in features.devices]
    return [f"    {name}: {features.version}{build}", *devices]

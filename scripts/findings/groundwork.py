"""The records that a session starts from, made by direct calls instead of by the workflow's earlier stages.

For what measures outside of the workflow (benchmarks, tests) through the workflow's own code: host, models,
environments and probes, written where `Place` looks for them. An empty cache is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from findings.config import Configuration
from findings.environments import ensure_environment
from findings.host import host_facts, host_record
from findings.records import Outcome, Record, write_record
from findings.site import Here
from findings.sources import ensure_archive, ensure_model


def lay_groundwork(
    configuration: Configuration,
    records: Path,
    cache: Path,
    models: Iterable[str],
    engines: Iterable[str],
    say: Callable[[str], None],
) -> list[Record]:
    """Write the records of this host, these models and these engines below `records`; return those not `ok`."""
    written: list[Record] = []

    def keep(path: str, record: Record) -> Record:
        written.append(replace(record, host=records.name))
        write_record(records / path, written[-1])
        return record

    keep("host.json", host_record(host_facts(configuration.host)))
    for model_id in models:
        say(f"model {model_id}")
        keep(f"sources/{model_id}.json", ensure_model(configuration.models[model_id], cache, configuration.root))
    for engine_id in engines:
        say(f"engine {engine_id}")
        engine = configuration.engines[engine_id]
        if engine.environment:
            lock = configuration.root / "envs" / f"{engine.environment}.txt"
            keep(f"environments/{engine.environment}.json", ensure_environment(engine.environment, lock, cache))
        if engine.archive is not None:
            keep(f"sources/{engine.id}.json", ensure_archive(engine.archive, cache, engine.id, configuration.root))
        keep(f"probes/{engine_id}.json", Here(records, cache).probed(engine, records.name))
    return [record for record in written if record.outcome is not Outcome.OK]

"""Which program an engine is on this machine, and the sha256 of the bytes that compute."""

from __future__ import annotations

from pathlib import Path

from findings.config import Driver, Engine
from findings.engine.drivers import locate_binary
from findings.engine.failure import EngineFailure
from findings.environments import environment_python
from findings.records import Outcome, read_record, sha256_file


def engine_program(engine: Engine, records: Path, cache: Path) -> Path:
    """The interpreter of the binding's environment, or the llama-server executable.

    `records` is results/records/<host>. Raises EngineFailure(unavailable) where environment or executable is missing.
    """
    python: Path | None = None
    if engine.environment:
        record = read_record(records / "environments" / f"{engine.environment}.json")
        if record.outcome is not Outcome.OK:
            raise EngineFailure(Outcome.UNAVAILABLE, f"environment {engine.environment}: {record.reason}")
        python = environment_python(record, cache)
    if engine.driver is Driver.XLLAMACPP:
        if python is None:
            raise EngineFailure(Outcome.UNAVAILABLE, f"{engine.id}: the driver xllamacpp needs an environment")
        return python
    return locate_binary(engine, python)


def program_sha256(engine: Engine, program: Path) -> str:
    """sha256 of the binding's shared library, or of the executable."""
    if engine.driver is Driver.XLLAMACPP:
        libraries = sorted(program.parent.parent.glob("lib/python*/site-packages/xllamacpp/*.so"))
        return sha256_file(libraries[0]) if libraries else ""
    return sha256_file(program)

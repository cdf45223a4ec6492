"""Ask an engine of the configuration what it is and what it can do, and write the answer as a record.

An engine that dies, hangs or is not there is an outcome in the record; the exit code is 0 then, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.config import ConfigurationError, Driver, load_configuration
from findings.engine.drivers import locate_binary
from findings.engine.failure import EngineFailure
from findings.engine.probe import PROBE_TIMEOUT_S, failed_probe, probe
from findings.records import Outcome, write_record


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder (default: this one)")
    parser.add_argument("--engine", required=True, help="id of an engine in config/engines.yaml")
    parser.add_argument("--python", type=Path, help="the Python of the engine's environment")
    parser.add_argument("--binary", default="", help="llama-server executable, instead of the configured one")
    parser.add_argument("--host", default="", help="label of this machine for the record")
    parser.add_argument("--timeout", type=float, default=PROBE_TIMEOUT_S, help="seconds for each question")
    parser.add_argument("--output", type=Path, required=True, help="the record to write")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write one probe record; 2 for an engine that is not in the configuration or lacks --python."""
    arguments = _parser().parse_args(argv)
    try:
        configuration = load_configuration(arguments.root)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    engine = configuration.engines.get(arguments.engine)
    if engine is None:
        known = ", ".join(sorted(configuration.engines))
        print(f"--engine: {arguments.engine!r} is not in config/engines.yaml; it has {known}", file=sys.stderr)
        return 2
    program = arguments.python
    if engine.driver is Driver.XLLAMACPP and program is None:
        print(f"--python: {engine.id} runs in an environment of its own; name its Python", file=sys.stderr)
        return 2
    try:
        if engine.driver is Driver.LLAMA_SERVER:
            program = locate_binary(engine, arguments.python, arguments.binary)
        record = probe(engine, program, arguments.host, arguments.timeout)
    except EngineFailure as failure:
        record = failed_probe(engine, failure, arguments.host)
    write_record(arguments.output, record)
    said = record.reason if record.outcome is not Outcome.OK else record.detail["version"]
    print(f"[probe {engine.id}] {record.outcome}: {said}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

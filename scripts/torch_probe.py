"""Ask one build of PyTorch which GPU architectures it carries, and write the record.

In the workflow: --wheel ID --records results/records/HOST (an id in config/engines.yaml, torch_wheels).
By hand: --python INTERPRETER, or --wheel-file FILE.whl (nothing is installed).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from findings.cache import cache_root
from findings.environments import environment_python
from findings.job import add_configuration_arguments, configured, progress
from findings.records import Kind, Outcome, Record, RecordError, read_record, redact, utc_now, write_record
from findings.torch_probe import ProbeError, probe_index, probe_python, probe_wheel
from findings.writing import command


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", default="", help="id of the build; with --records one of config/engines.yaml")
    parser.add_argument("--records", type=Path, help="results/records/<host>")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="cache folder, with --records")
    add_configuration_arguments(parser)
    parser.add_argument("--python", type=Path, help="interpreter whose torch is asked")
    parser.add_argument("--wheel-file", type=Path, help="a wheel of torch, read without installing it")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    return parser


def configured_probe(given: argparse.Namespace) -> Record:
    """The record of a build that the configuration names."""
    configuration = configured(given.config_root, given.overrides)
    wheel = configuration.torch_wheels.get(given.wheel)
    if wheel is None:
        raise ProbeError(f"config/engines.yaml: there is no torch wheel {given.wheel!r}")
    if given.python:
        return probe_python(wheel.id, given.python.absolute(), wheel.version)
    if not wheel.environment:
        return probe_index(wheel)
    environment = read_record(given.records / "environments" / f"{wheel.environment}.json")
    if environment.outcome is not Outcome.OK:
        reason = f"environment {wheel.environment} is {environment.outcome.value}: {environment.reason}"
        return Record(Kind.TORCH, wheel.id, Outcome.NOT_RUN, reason, started=utc_now())
    return probe_python(wheel.id, environment_python(environment, given.cache.resolve()), wheel.version)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for every answer, 1 where nothing could be asked, 2 for a wrong command line."""
    parser = arguments()
    given = parser.parse_args(argv)
    try:
        if given.wheel_file:
            record = probe_wheel(given.wheel or given.wheel_file.name, given.wheel_file)
        elif given.records and given.wheel:
            record = configured_probe(given)
        elif given.python:
            record = probe_python(given.wheel or "by-hand", given.python.absolute())
        else:
            parser.error("give --wheel and --records, or --python, or --wheel-file")
    except (ProbeError, RecordError, ValueError) as error:
        print(f"torch_probe: {redact(str(error))}", file=sys.stderr)
        return 1
    write_record(given.record, replace(record, host=given.records.name if given.records else ""))
    found = record.detail
    told = f"{record.outcome.value}: torch {found.get('version', '?')} ({found.get('channel', '?')})"
    progress(
        f"torch {record.subject}", f"{told}, sm_61 {found.get('sm_61', 'unknown')} {redact(record.reason)}".rstrip()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the record of a machine that measures: processor, memory, GPUs, under a generic label.

This machine, or one of `hosts:` in config/config.yaml that is reached over ssh and asked there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings import plan
from findings.host import host_facts, host_record
from findings.interrupted import end_with_workflow
from findings.job import add_configuration_arguments, configured, progress
from findings.records import write_record
from findings.remote.site import RemoteSite
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the host record; exit code 2 for a label that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_configuration_arguments(parser)
    parser.add_argument("--host", default="auto", help="label to publish, or auto")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    try:
        remote = plan.host_of(configured(arguments.config_root, arguments.overrides), arguments.host)
        if remote is not None and remote.ssh:
            record = RemoteSite.of(remote).described()
        else:
            record = host_record(host_facts(arguments.host))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    write_record(arguments.record, record)
    if record.reason:
        progress(f"host {arguments.host}", f"{record.outcome.value}: {record.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

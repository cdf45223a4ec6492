"""Read one model's GGUF header and write its facts (architecture, vocabulary, sizes) as a record.

The weights are never read. A file that is no GGUF is an answer: the record says `refused` and why.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from findings.cache import cache_root
from findings.gguf_header import GgufError, read_header
from findings.model_facts import facts
from findings.records import Kind, Outcome, Record, RecordError, read_record, to_json, utc_now, write_record
from findings.sources import model_path
from findings.writing import command


def facts_record(path: Path, subject: str, host: str = "") -> Record:
    """The facts of one file as a record; outcome refused where it cannot be read as GGUF."""
    started, begun = utc_now(), time.monotonic()
    try:
        detail, outcome, reason = facts(read_header(path)), Outcome.OK, ""
    except GgufError as error:
        detail, outcome, reason = {"fault": error.fault.value}, Outcome.REFUSED, error.reason
    return Record(
        Kind.FACTS,
        subject,
        outcome,
        reason,
        host=host,
        seconds=time.monotonic() - begun,
        started=started,
        detail=detail,
    )


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write or print the facts of one model; 2 for bad usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="a GGUF file")
    which.add_argument("--source", type=Path, help="record of the download or conversion that made the file")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="cache that a --source record refers to")
    parser.add_argument("--host", default="", help="label of the host for the record")
    parser.add_argument("--record", type=Path, help="JSON file to write (default: print the record)")
    arguments = parser.parse_args(argv)
    if arguments.model is not None:
        record = facts_record(arguments.model, arguments.model.stem, arguments.host)
    else:
        try:
            source = read_record(arguments.source)
        except RecordError as error:
            print(error, file=sys.stderr)
            return 2
        if source.outcome is Outcome.OK:
            record = facts_record(model_path(source, arguments.cache), source.subject, arguments.host)
        else:
            reason = f"no file: {source.outcome.value}: {source.reason}"
            record = Record(Kind.FACTS, source.subject, Outcome.NOT_RUN, reason, host=arguments.host, started=utc_now())
    if arguments.record is None:
        print(to_json(record), end="")
    else:
        write_record(arguments.record, record)
        print(f"[facts {record.subject}] {record.outcome.value} {record.reason}".rstrip(), file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

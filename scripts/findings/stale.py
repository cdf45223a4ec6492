"""Records that no longer tell the truth: what failed may succeed now, what was there may be gone.

Snakemake sees a record and takes its job for done. A download that failed for want of a network must be tried again by
the next run, with all that rests on it; a record of a file in another or emptied cache must be made anew where a job
needs the file, and what was measured with it stays. What another machine was asked for in vain is asked for again: it
may be on now, and nothing here would notice what changes there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from findings.records import Kind, Outcome, Record, RecordError, read_record

PLACES = ("cache_path", "python")
FOLDERS = ("sources", "environments", "torch", "conversions/*", "retyped", "padded")
ASKED = ("probes", "loads", "measure")
RUN_FOLDER = re.compile(r"run-\d+")


def is_stale(record: Record, cache: Path) -> bool:
    """Whether a record of what is fetched or made here (models, environments, builds of PyTorch) should be made anew.

    True for `unavailable` with detail.retryable (no network, a server's failure, a full disk), and for `ok` where the
    cache does not hold the thing; False for every other kind of record and for refusals that only an edit can mend
    (those change the job's parameters or inputs, so Snakemake notices them itself).
    """
    if record.kind not in (Kind.DOWNLOAD, Kind.ENVIRONMENT, Kind.TORCH, Kind.CONVERSION):
        return False
    if record.outcome is not Outcome.OK:
        return _is_worth_another_try(record)
    places = [str(record.detail[key]) for key in PLACES if record.detail.get(key)]
    return any(not (cache / place).exists() for place in places)


def failed_for_a_while(records: Path) -> list[Path]:
    """Files of the records, below `records`, of what could not be fetched and is worth another try."""
    return [path for path, record in _records(records) if record is not None and _is_worth_another_try(record)]


def records_of_gone_files(records: Path, cache: Path) -> list[Path]:
    """Files of records there whose bytes the cache does not hold; an unreadable record counts, too."""
    return [
        path
        for path, record in _records(records)
        if record is None or (is_stale(record, cache) and not _is_worth_another_try(record))
    ]


def _is_worth_another_try(record: Record) -> bool:
    """A converter's refusal is an answer; only what could not be fetched for a while is asked for again."""
    return record.outcome is not Outcome.OK and bool(record.detail.get("retryable"))


def _records(records: Path) -> Iterator[tuple[Path, Record | None]]:
    for folder in FOLDERS:
        for path in sorted(records.glob(f"{folder}/*.json")):
            try:
                yield path, read_record(path)
            except RecordError:
                yield path, None


def unreached_records(records: Path) -> list[Path]:
    """Files of records of another machine (its folder below results/records) that ended as `unavailable`."""
    paths = [records / "host.json", *(path for folder in ASKED for path in (records / folder).rglob("*.json"))]
    found = []
    for path in sorted(path for path in paths if path.is_file() and not RUN_FOLDER.match(path.parent.name)):
        try:
            if read_record(path).outcome is Outcome.UNAVAILABLE:
                found.append(path)
        except RecordError:
            found.append(path)
    return found

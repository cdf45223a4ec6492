"""Records of sources that no longer tell the truth: what failed may succeed now, what was there may be gone.

Snakemake sees a record and takes its job for done. A download that failed for want of a network must be tried again by
the next run, and a record of a file in another or emptied cache must be made anew; both are found here.
"""

from __future__ import annotations

from pathlib import Path

from findings.records import Kind, Outcome, Record, RecordError, read_record

PLACES = ("cache_path", "python")
FOLDERS = ("sources", "environments", "torch", "conversions/*", "retyped", "padded")


def is_stale(record: Record, cache: Path) -> bool:
    """Whether a record of what is fetched or made here (models, environments, builds of PyTorch) should be made anew.

    True for `unavailable` with detail.retryable (no network, a server's failure, a full disk), and for `ok` where the
    cache does not hold the thing; False for every other kind of record and for refusals that only an edit can mend
    (those change the job's parameters or inputs, so Snakemake notices them itself).
    """
    if record.kind not in (Kind.DOWNLOAD, Kind.ENVIRONMENT, Kind.TORCH, Kind.CONVERSION):
        return False
    if record.outcome is not Outcome.OK:
        # A converter's refusal is an answer; only what could not be fetched for a while is asked for again.
        return bool(record.detail.get("retryable"))
    places = [str(record.detail[key]) for key in PLACES if record.detail.get(key)]
    return any(not (cache / place).exists() for place in places)


def stale_records(records: Path, cache: Path) -> list[Path]:
    """Files of stale records in the FOLDERS below `records`; an unreadable one counts, too."""
    found = []
    for folder in FOLDERS:
        for path in sorted(records.glob(f"{folder}/*.json")):
            try:
                stale = is_stale(read_record(path), cache)
            except RecordError:
                stale = True
            if stale:
                found.append(path)
    return found

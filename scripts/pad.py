"""Make the positive control of multi-token prediction: a copy of a target whose steps cost more, with the same text.

`python scripts/pad.py --source tiny-gemma4-target-f16.gguf --record pad.json` puts it into the cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from findings.cache import CacheError, cache_root
from findings.job import progress
from findings.padding import COLUMNS, PaddingError, padded
from findings.records import Kind, Outcome, Record, redact, sha256_file, utc_now, write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; exit code 0, or 1 where the source cannot be padded or the cache cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="GGUF of the target, f16 or f32")
    parser.add_argument("--name", default="", help="name of the copy (default: that of the source with -padded)")
    parser.add_argument("--columns", type=int, default=COLUMNS, help="feed-forward columns added to each layer")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="cache folder")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args(argv)
    name = given.name or f"{given.source.stem}-padded.gguf"
    cache, started, begun = given.cache.resolve(), utc_now(), time.monotonic()
    try:
        source_sha256 = sha256_file(given.source)
        path, digest = padded(given.source, source_sha256, name, cache, given.columns)
    except (PaddingError, CacheError) as error:
        print(f"pad: {redact(str(error))}", file=sys.stderr)
        return 1
    detail = {
        "padded_from": {"file": given.source.name, "sha256": source_sha256},
        "columns": given.columns,
        "sha256": digest,
        "size_bytes": path.stat().st_size,
        "cache_path": path.relative_to(cache).as_posix(),
    }
    seconds = round(time.monotonic() - begun, 3)
    write_record(
        given.record, Record(Kind.CONVERSION, path.stem, Outcome.OK, seconds=seconds, started=started, detail=detail)
    )
    progress(f"pad {path.stem}", f"ok, {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Scan files and folders for what must not be published: tokens, keys, private addresses, names, paths, e-mail."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.config import ConfigurationError, load_configuration
from findings.leakscan import LeakError, require_clean, scan_paths
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 nothing found, 1 hits (file, line, column and kind on stderr, never the secret), 2 bad usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="files or folders; zip, gz, tar and Parquet are opened")
    parser.add_argument("--config-root", type=Path, default=Path(), help="folder that holds config/ (allowances)")
    parser.add_argument("--no-allowances", action="store_true", help="do not read config/: nothing is allowed")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON on stdout")
    arguments = parser.parse_args(argv)
    try:
        known = (
            () if arguments.no_allowances else load_configuration(arguments.config_root).settings.leakscan_allowances
        )
        result = scan_paths(arguments.paths, known)
    except (ConfigurationError, OSError) as error:
        print(f"leakscan: {error}", file=sys.stderr)
        return 2
    counts = {"files": result.files, "lines": result.lines, "bytes": result.bytes, "hits": dict(result.by_kind)}
    counts |= {"allowed": dict(result.allowed), "opaque": list(result.opaque)}
    if arguments.json:
        print(json.dumps(counts, indent=1, sort_keys=True))
    found, allowed = len(result.hits), sum(result.allowed.values())
    print(
        f"[leakscan] {result.files} files, {result.lines} lines, {result.bytes} bytes: "
        f"{found} hits, {allowed} allowed, {len(result.opaque)} without text",
        file=sys.stderr,
    )
    try:
        require_clean(result)
    except LeakError as error:
        print(f"leakscan: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

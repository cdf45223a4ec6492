"""Write the records of a host as a bundle, which other machines list under `imports:`; one bundle for each host."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.bundles import BundleError, folder_records, newest_runs, write_bundle
from findings.code_version import code_sha256
from findings.config import Configuration, ConfigurationError, load_configuration
from findings.host import resolve_label
from findings.job import add_configuration_arguments
from findings.leakscan import LeakError, Scanner, require_clean
from findings.writing import command


def export(configuration: Configuration, records: Path, host: str, out: Path, *, every_run: bool) -> int:
    """Write the bundle of `host` once the leak scan passed; returns the number of files in it.

    Raises BundleError where there is nothing to export, LeakError where something must not be published.
    """
    chosen = newest_runs((f for f in folder_records(records) if f.host == host), every_run=every_run)
    for note in chosen.notes:
        print(f"[export] {note}", file=sys.stderr)

    def check(path: Path) -> None:
        scanner = Scanner(configuration.settings.leakscan_allowances)
        scanner.scan_path(path, out.as_posix())
        result = scanner.result()
        print(f"[export] scanned {result.lines} lines, {len(result.hits)} hits", file=sys.stderr)
        require_clean(result)

    return write_bundle(out, host, chosen.files, code_sha256(configuration.root), check)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 something in it must not be published or the disk refused, 2 nothing to export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=Path("results/records"), help="folder of the records")
    parser.add_argument(
        "--host", action="append", default=[], help="label of a host (default: this machine's; may be repeated)"
    )
    add_configuration_arguments(parser)
    parser.add_argument("--out", type=Path, help="the bundle of a single host (default: results/export/<host>.zip)")
    parser.add_argument("--every-run", action="store_true", help="all complete runs of a session, not the newest alone")
    arguments = parser.parse_args(argv)
    if arguments.out is not None and len(arguments.host) > 1:
        parser.error("--out names the bundle of one host; leave it out, or give one --host")
    try:
        configuration = load_configuration(arguments.config_root, json.loads(arguments.overrides))
        for host in arguments.host or [resolve_label(configuration.host)]:
            out = arguments.out or Path("results/export") / f"{host}.zip"
            count = export(configuration, arguments.records, host, out, every_run=arguments.every_run)
            print(f"[export] {count} files of {host} in {out}", file=sys.stderr)
    except (ConfigurationError, BundleError, json.JSONDecodeError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    except LeakError as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

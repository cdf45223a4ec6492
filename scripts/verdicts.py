"""Judge every finding from the records: one row per finding, scope, host and engine; say the verdicts aloud."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from findings.bundles import BundleError
from findings.config import load_configuration
from findings.evidence import gather
from findings.imports import ImportedFileError
from findings.job import add_configuration_arguments, configured
from findings.records import RecordError
from findings.scores import score_rows
from findings.tables import PRECHECK_SCORES, VERDICTS, to_table, write_table
from findings.verdict_rows import verdict_rows
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the verdicts; 0 whatever they are, 1 for a damaged record, 2 for a wrong configuration or import."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_configuration_arguments(parser)
    parser.add_argument("--records", type=Path, default=Path("results/records"), help="folder with the hosts' records")
    parser.add_argument("--attempt", action="append", default=[], help="only this attempt (may be repeated)")
    parser.add_argument("--host", action="append", default=[], help="say the verdicts of this host (may be repeated)")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--scores", type=Path, help="Parquet file for the pre-check's score, if wanted")
    arguments = parser.parse_args(argv)
    configuration = configured(arguments.config_root, arguments.overrides)
    overrides: dict[str, Any] = json.loads(arguments.overrides)
    only = arguments.attempt[0] if len(arguments.attempt) == 1 else ""
    try:
        gathered = gather(configuration, arguments.records, attempt=only)
        rows = verdict_rows(
            configuration,
            gathered.files,
            lambda study: load_configuration(arguments.config_root, {**overrides, "study": study}),
            arguments.attempt,
        )
    except (BundleError, ImportedFileError) as error:
        print(f"verdicts: {error}", file=sys.stderr)
        return 2
    except RecordError as error:
        print(f"verdicts: {error}", file=sys.stderr)
        return 1
    write_table(arguments.out, to_table(rows, VERDICTS), VERDICTS)
    if arguments.scores is not None:
        builds = {engine.id: engine.build for engine in configuration.engines.values()}
        scores = score_rows(gathered.files, rows, builds)
        write_table(arguments.scores, to_table(scores, PRECHECK_SCORES), PRECHECK_SCORES)
    for row in rows:
        if row["host"] in arguments.host:
            named = f"{row['host']}: " if len(arguments.host) > 1 else ""
            print(f"{named}{line(row)}", flush=True)
    return 0


def line(row: Mapping[str, Any]) -> str:
    """One verdict for a terminal."""
    engine = f" [{row['engine']}]" if row["engine"] else ""
    return f"{row['finding']} ({row['scope']}){engine}: {row['verdict'].replace('_', ' ')}: {row['reason']}"


if __name__ == "__main__":
    sys.exit(main())

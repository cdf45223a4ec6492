"""Check the whole configuration and say in one line what it holds, or every mistake with its mend."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.config import load_configuration
from findings.config_check import ConfigurationError
from findings.config_read import ReadError, parse_yaml
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when the configuration is right, 2 when it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder (default: the current one)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of config/config.yaml"
    )
    options = parser.parse_args(argv)
    overrides = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        try:
            if not equals:
                raise ReadError("has no =; write KEY=VALUE")
            overrides[key] = parse_yaml(value)
        except ReadError as error:
            print(f"--set {item}: {error}", file=sys.stderr)
            return 2
    try:
        found = load_configuration(options.root, overrides)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"study {found.study.id}: {len(found.findings)} findings, {len(found.attempts)} attempts, "
        f"{len(found.models)} models, {len(found.engines)} engines, {len(found.converters)} converters"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

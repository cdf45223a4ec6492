"""Say what was found on this machine, what of the study can run here, how much would be fetched, and how long it takes.

Fetches nothing. One HEAD request asks whether the hub can be reached; --no-network leaves it out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.cache import cache_root
from findings.doctor import described, diagnose
from findings.job import add_configuration_arguments, configured
from findings.remote.doctor import machines_over_ssh
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """0 whatever was found, 2 for a wrong configuration or host label."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_configuration_arguments(parser)
    parser.add_argument("--cache", type=Path, default=cache_root(), help="folder with models, engines and environments")
    parser.add_argument("--no-network", action="store_true", help="do not ask whether the hub can be reached")
    parser.add_argument("--quick", action="store_true", help="start no program to ask for its version and devices")
    given = parser.parse_args(argv)
    configuration = configured(given.config_root.resolve(), given.overrides)
    try:
        found = diagnose(
            configuration, given.cache.resolve(), network=not given.no_network, ask_programs=not given.quick
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(described(found))
    if not given.no_network and not given.quick:
        for line in machines_over_ssh(configuration):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

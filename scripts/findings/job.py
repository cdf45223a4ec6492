"""What every tool of the workflow is told: the configuration, the host, where its records are, and the cache."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings import plan
from findings.cache import cache_root
from findings.config import Configuration, ConfigurationError, RemoteHost, load_configuration
from findings.site import Site, site_of


@dataclass(frozen=True)
class Job:
    """The common part of a tool's arguments, read and checked.

    `records` is results/records/<host> of the machine that measures, `shared` that of the machine that fetched models
    and engines: the same folder unless another machine measures for this one.
    """

    configuration: Configuration
    records: Path
    cache: Path
    shared: Path

    @property
    def host(self) -> str:
        """The label of the host that the records belong to."""
        return self.records.name

    @property
    def remote(self) -> RemoteHost | None:
        """The configured machine that the records belong to; None for the machine that runs the workflow."""
        return plan.host_of(self.configuration, self.host)

    @functools.cached_property
    def site(self) -> Site:
        """Where this job's engines run."""
        return site_of(self.remote, self.shared, self.cache)


def given_overrides() -> str:
    """What `snakemake --config` and `--configfile` changed, as JSON; the workflow hands it on in the environment."""
    return os.environ.get("FINDINGS_OVERRIDES", "{}")


def add_configuration_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that a configuration is read with (`configured`)."""
    parser.add_argument("--config-root", type=Path, default=Path(), help="folder that holds config/ (default: here)")
    parser.add_argument("--overrides", default=given_overrides(), help="JSON that replaces keys of config/config.yaml")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that a Job is made of."""
    add_configuration_arguments(parser)
    parser.add_argument("--records", type=Path, required=True, help="results/records/<host>")
    parser.add_argument("--shared", type=Path, help="records of what was fetched and converted (default: --records)")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="folder with models, engines and environments")


def read_job(arguments: argparse.Namespace) -> Job:
    """The job of parsed arguments; leaves the program with code 2 and a message where the configuration is wrong."""
    configuration = configured(arguments.config_root, arguments.overrides)
    return Job(configuration, arguments.records, arguments.cache, arguments.shared or arguments.records)


def configured(root: Path, overrides: str) -> Configuration:
    """The checked configuration; leaves the program with code 2 and every message where it is wrong."""
    try:
        values: dict[str, Any] = json.loads(overrides)
        return load_configuration(root, values)
    except (ConfigurationError, json.JSONDecodeError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def progress(label: str, text: str) -> None:
    """One line of progress on stderr, at once."""
    print(f"[{label}] {text}", file=sys.stderr, flush=True)

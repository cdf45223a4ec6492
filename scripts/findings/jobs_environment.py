"""What the workflow hands to its jobs in the environment, because it is no parameter of theirs.

A cache that moved, or a key of the configuration that does not concern a job, must not make Snakemake run it again;
what does concern it is named by the rule as a parameter.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOST_VARIABLE = "FINDINGS_HOST"


def host_of_run() -> str:
    """The label of the machine that runs the workflow, in a job of it on any node; empty in the run itself."""
    return os.environ.get(HOST_VARIABLE, "")


def export_to_jobs(cache: Path, overrides: Mapping[str, Any], host: str) -> None:
    """Let jobs find this interpreter first (no environment need be activated), the cache, overrides, and the label."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["FINDINGS_CACHE"] = str(cache.absolute())
    os.environ[HOST_VARIABLE] = host
    os.environ["FINDINGS_OVERRIDES"] = json.dumps(overrides, sort_keys=True)

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


def export_to_jobs(cache: Path, overrides: Mapping[str, Any]) -> None:
    """Let jobs find this interpreter first (also where its environment is not activated), the cache, and overrides."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["FINDINGS_CACHE"] = str(cache.absolute())
    os.environ["FINDINGS_OVERRIDES"] = json.dumps(overrides, sort_keys=True)

"""Tells a run that executes jobs from one that only looks: -n, --summary, --lint, --dag, --list-rules, --touch.

Snakemake reads the workflow in the same way for all of them, and decides only afterwards what it is asked for. What
changes files may therefore not stand in the workflow itself; it is done at the one door that every run goes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def before_a_real_run(workflow: Any, prepare: Callable[[], None]) -> None:
    """Have `workflow` (Snakemake's) call `prepare` once, before it looks at any file, and only if it will run jobs."""
    execute = workflow.execute

    @functools.wraps(execute)
    def prepared(*arguments: Any, **named: Any) -> Any:
        plugin = named["executor_plugin"] if "executor_plugin" in named else arguments[0]
        settings = plugin.common_settings
        if not settings.dryrun_exec and not settings.touch_exec:
            prepare()
        return execute(*arguments, **named)

    workflow.execute = prepared

"""Tells a run that executes jobs from one that only looks: -n, --summary, --lint, --dag, --list-rules, --touch.

Snakemake reads the workflow in the same way for all of them, and decides only afterwards what it is asked for. What
changes files may therefore not stand in the workflow itself; it is done at the one door that every run goes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
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


def ask_again(workflow: Any, files: Callable[[], Iterable[str]]) -> None:
    """Have `workflow` run the jobs that make `files` again, of those that what is asked for rests on.

    Deleting a file does not do it: Snakemake makes a missing file again only where a job that needs it runs. Listings
    show these jobs, too, and nothing is deleted before a job really begins.
    """
    build = workflow._build_dag

    @functools.wraps(build)
    def building() -> Any:
        workflow.dag.forcefiles.update(files())
        return build()

    workflow._build_dag = building

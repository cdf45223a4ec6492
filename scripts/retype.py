"""Make a copy of a model with other token types, and the record that says where it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from findings.config import Model
from findings.model_copies import Recipe, run_tool
from findings.retype import retyped
from findings.writing import command


def recipe(model: Model) -> Recipe | None:
    """How the copy is made; None for a model without `retyped_from`."""
    return Recipe(retyped, {"retyped_from": model.retyped_from}) if model.retyped_from is not None else None


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; `not_run` where the original is not here; 1 for a fault of the pipeline."""
    return run_tool(argv, str(__doc__), recipe, "retyped_from")


if __name__ == "__main__":
    sys.exit(main())

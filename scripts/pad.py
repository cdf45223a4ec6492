"""Make a copy of a model whose steps cost more, with the same text, and the record that says where it is.

It is the target of a positive control of multi-token prediction, and artificial on purpose (findings/padding.py).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from findings.config import Model
from findings.model_copies import Recipe, run_tool
from findings.padding import padded
from findings.writing import command


def recipe(model: Model) -> Recipe | None:
    """How the copy is made; None for a model without `padded_from`."""
    if model.padded_from is None:
        return None
    columns = model.padded_from.columns
    make = functools.partial(padded, columns=columns)
    return Recipe(make, {"padded_from": model.padded_from.model, "columns": columns, "artificial": True})


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; `not_run` where the original is not here; 1 for a fault of the pipeline."""
    return run_tool(argv, str(__doc__), recipe, "padded_from")


if __name__ == "__main__":
    sys.exit(main())

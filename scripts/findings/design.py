"""In which order the arms of a block run.

An arm that always runs first meets a colder machine than one that always runs last, and an arm may leave something
behind for the next one (heat, a filled page cache). Williams designs (E. J. Williams 1949, "Experimental designs
balanced for the estimation of residual effects of treatments") let every arm stand at every position equally often
and follow every other arm equally often. For two arms that is ABBA.

The order is a function of the arms, the number of the block and a recorded seed alone. It uses sha256 and not a
random generator, so it is the same in every Python version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def williams_orders(arms: int) -> list[list[int]]:
    """The rows of a Williams design for `arms` arms, each row an order of 0 .. arms-1.

    An even number of arms takes `arms` rows, an odd one twice as many (the second half is the first one reversed).
    Over all rows every arm is at every position equally often, and directly follows every other arm equally often.
    The first `arms` rows alone are balanced for the position. One arm gives one row.

    Raises ValueError for fewer than one arm.
    """
    if arms < 1:
        raise ValueError(f"a block needs at least one arm, not {arms}")
    first = [(position + 1) // 2 if position % 2 else -(position // 2) for position in range(arms)]
    rows = [[(start + step) % arms for step in first] for start in range(arms)]
    if arms % 2 and arms > 1:
        rows += [list(reversed(row)) for row in rows]
    return rows


def cycle_length(arms: int) -> int:
    """After how many blocks the design is balanced: 2 for two arms, 6 for three, 4 for four, 10 for five."""
    return len(williams_orders(arms))


def order_for_block(arms: Sequence[str], block: int, seed: int) -> list[str]:
    """The order of `arms` in block number `block` (counted from 1) for a recorded `seed`.

    Every cycle of blocks goes through all rows of the design once, in an order that the seed decides anew for each
    cycle; each aligned group of `len(arms)` blocks is balanced for the position. Which arm takes which place in the
    design depends on the seed and on the names of the arms, not on the order in which they are given.

    Raises ValueError for no arms, a name given twice, or a block below 1.
    """
    if block < 1:
        raise ValueError(f"blocks are counted from 1, not {block}")
    if len(set(arms)) != len(arms):
        raise ValueError(f"each arm runs once per block, but the names repeat: {', '.join(arms)}")
    rows = williams_orders(len(arms))
    cycle, row = divmod(block - 1, len(rows))
    labels = _shuffled(sorted(arms), f"{seed}:arms")
    # Shuffle inside the halves of an odd design, so that each half stays balanced for the position.
    halves = [list(range(start, start + len(arms))) for start in range(0, len(rows), len(arms))]
    halves = _shuffled(halves, f"{seed}:{cycle}:halves")
    sequence = [index for half in halves for index in _shuffled(half, f"{seed}:{cycle}:rows")]
    return [labels[arm] for arm in rows[sequence[row]]]


def _shuffled(items: Sequence[_Item], key: str) -> list[_Item]:
    """`items` in an order that only `key` and the items decide."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{key}:{item}".encode()).digest())

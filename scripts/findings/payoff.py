"""Whether a drafter can pay at all, from the bytes that a token costs or from measured costs.

Decoding one token reads the weights once, so their bytes stand for its time where memory is the limit. With c the
drafter's cost in tokens of the target, g drafted tokens a round and v(g+1) the cost of verifying them, a round costs
g c + v(g+1) and gives at most g + 1 tokens: at c >= 1 nothing can pay, however good the drafter is. The formula is
that of findings.breakeven (Leviathan, Kalman and Matias 2023); v = 1 here, the best case, unless it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from findings.gguf_header import Header, Tensor
from findings.model_facts import shape


@dataclass(frozen=True)
class Payoff:
    """What it takes to pay. `relative_cost` is c; `drafted` is g; costs of verifying as `verify_cost` (1: best case).

    `acceptance_needed` is the chance per drafted token (conditional on those before it) at which a round breaks even;
    above 1 means never. `best_speedup` is reached when everything is accepted.
    """

    relative_cost: float
    drafted: int
    verify_cost: float
    measured: bool
    acceptance_needed: float
    best_speedup: float

    @property
    def never(self) -> bool:
        """Whether no acceptance suffices."""
        return self.acceptance_needed > 1

    def sentence(self) -> str:
        """The answer in one line."""
        basis = "measured" if self.measured else "from the bytes read per token"
        cost = f"a drafted token costs {self.relative_cost:.2f} of a target's token ({basis})"
        if self.never:
            return f"{cost}: it can never pay, even with every draft accepted ({self.best_speedup:.2f} x)"
        return (
            f"{cost}: with {self.drafted} drafted tokens a round it pays above {100 * self.acceptance_needed:.0f} % "
            f"acceptance per token; at most {self.best_speedup:.2f} x"
        )

    def as_json(self) -> dict[str, Any]:
        """For a record; an acceptance above 1 is written as it is."""
        return {
            "relative_cost": round(self.relative_cost, 4),
            "drafted": self.drafted,
            "verify_cost": self.verify_cost,
            "measured": self.measured,
            "acceptance_needed": round(self.acceptance_needed, 4),
            "best_speedup": round(self.best_speedup, 4),
            "never": self.never,
        }


def bytes_per_token(header: Header, tensors: Sequence[Tensor]) -> int:
    """Bytes of weights that decoding one token reads: everything but tables looked up by row, and experts left out."""
    found = shape(header)
    share = found.experts_used / found.experts if found.experts else 1.0
    names = {tensor.name for tensor in tensors}
    total = 0.0
    for tensor in tensors:
        size = tensor.size_bytes or 0
        if tensor.name == "per_layer_token_embd.weight" or (
            tensor.name == "token_embd.weight" and "output.weight" in names
        ):
            continue
        total += size * share if "_exps" in tensor.name else size
    return int(total)


def tokens_per_round(acceptance: float, drafted: int) -> float:
    """Expected tokens a round gives: 1 + p + p^2 + ... + p^g."""
    return sum(acceptance**power for power in range(drafted + 1))


def payoff(relative_cost: float, drafted: int, verify_cost: float = 1.0, measured: bool = False) -> Payoff:
    """What a drafter needs. Raises ValueError for a cost that is not above 0 or fewer than 1 drafted token."""
    if relative_cost <= 0 or drafted < 1 or verify_cost <= 0:
        raise ValueError(
            f"costs must be above 0 and drafts at least 1 token (got {relative_cost}, {verify_cost}, {drafted})"
        )
    round_cost = drafted * relative_cost + verify_cost
    best = (drafted + 1) / round_cost
    if best < 1:
        # Beyond 1 there is no acceptance; the ratio says by how much a perfect drafter would miss.
        needed = 1 / best
    elif best == 1:
        needed = 1.0 + 1e-9
    else:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tokens_per_round(middle, drafted) < round_cost else (low, middle)
        needed = high
    return Payoff(relative_cost, drafted, verify_cost, measured, needed, best)

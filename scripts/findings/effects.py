"""The effect of an arm in each block: ln(speed of the arm / speed of the baseline), and whether it may be called one.

How the requests of a block are combined is decided in `inference.block_effects`; here only those blocks and classes
are let through in which an arm that should draft did draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from findings.blocks import ArmRun, Block, block_to_json
from findings.inference import ALL_CLASSES, Metric, effects_of_block
from findings.records import Engagement, Outcome


def speculates(run: ArmRun) -> bool:
    """Whether the arm was meant to speculate."""
    return run.speculation != "none"


def class_engagement(run: ArmRun, prompt_class: str) -> Engagement:
    """What speculation did in the counted requests of one class (or of `all`) of one arm.

    The arm's own engagement where it never drafted; else by the drafted tokens of these requests alone, since an
    n-gram arm may find something to draft in code and nothing in prose.
    """
    if run.engagement is not Engagement.WITH_DRAFTS:
        return run.engagement
    requests = [r for r in run.requests if r.counted and prompt_class in (ALL_CLASSES, r.prompt_class)]
    drafted = sum(r.draft_n or 0 for r in requests)
    return Engagement.WITH_DRAFTS if drafted > 0 else Engagement.WITHOUT_DRAFTS


def arm_effects(
    blocks: Sequence[Block], arm: str, prompt_class: str = ALL_CLASSES, metric: Metric = Metric.GENERATION
) -> list[float]:
    """ln ratio of `arm` per block, in the order of the blocks; NaN where there is no speed to speak of.

    `metric` says which speed: of generation (tg) or of prompt evaluation (pp).

    NaN: the arm or the baseline did not end well, was not asked this class, or the arm should have drafted in this
    class and did not. Blocks in which the arm did not take part are left out.
    """
    effects = []
    for block in blocks:
        run = block.arms.get(arm)
        if run is None:
            continue
        baseline = next((r.arm for r in block.arms.values() if r.kind == "baseline"), "baseline")
        usable = run.outcome is Outcome.OK and (
            not speculates(run) or class_engagement(run, prompt_class) is Engagement.WITH_DRAFTS
        )
        found = effects_of_block(block_to_json(block), baseline, metric).get(arm, {}).get(prompt_class, math.nan)
        effects.append(found if usable else math.nan)
    return effects

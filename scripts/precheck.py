"""Say before any benchmark whether a target and a drafter will load, engage, fit and pay, from their headers alone.

Exit code 0 whenever it could answer, 1 when a file cannot be read as GGUF, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from findings.engine_rules import NEWEST_TESTED
from findings.memory_plan import CACHE_TYPES, DEFAULT_CTX, DEFAULT_UBATCH, MemoryPlanError, Settings, parse_size
from findings.precheck import DEFAULT_DRAFTED, Prediction, Question, precheck_files
from findings.records import Kind, Outcome, Record, utc_now, write_record
from findings.writing import command

SPEC_TYPES = ("draft_simple", "draft_mtp")


def _positive(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 2147483647")
    return number


def _cost(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except MemoryPlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("target", type=Path, metavar="TARGET.gguf", help="the model that answers")
    made.add_argument("drafter", type=Path, nargs="?", metavar="DRAFTER.gguf", help="the model that drafts")
    made.add_argument("--build", type=_positive, default=NEWEST_TESTED, help=f"build of llama.cpp ({NEWEST_TESTED})")
    made.add_argument("--spec-type", choices=SPEC_TYPES, default="", help="how it is started (what the drafter needs)")
    made.add_argument("--memory", type=_size, help="memory that both must fit into, such as 6GiB")
    made.add_argument("--ctx", type=_positive, default=DEFAULT_CTX, help=f"context in tokens ({DEFAULT_CTX})")
    made.add_argument("--ubatch", type=_positive, default=DEFAULT_UBATCH, help=f"micro-batch ({DEFAULT_UBATCH})")
    made.add_argument("--slots", type=_positive, default=1, help="parallel requests (1)")
    made.add_argument("--cache-k", choices=sorted(CACHE_TYPES), default="f16", metavar="TYPE", help="-ctk (f16)")
    made.add_argument("--cache-v", choices=sorted(CACHE_TYPES), default="f16", metavar="TYPE", help="-ctv (f16)")
    made.add_argument("--swa-full", action="store_true", help="keep the whole context for windowed layers, too")
    made.add_argument("--drafted", type=_positive, default=DEFAULT_DRAFTED, help=f"drafted tokens ({DEFAULT_DRAFTED})")
    made.add_argument("--relative-cost", type=_cost, help="measured cost of a drafted token in tokens of the target")
    made.add_argument("--verify-cost", type=_cost, help="measured cost of verifying a round, in tokens of the target")
    made.add_argument("--deep", action="store_true", help="also look for token texts that come twice (slower)")
    made.add_argument("--json", action="store_true", help="print JSON instead of text")
    made.add_argument("--record", type=Path, help="also write a record")
    made.add_argument("--host", default="", help="label of the host for the record")
    return made


def prediction_record(prediction: Prediction, subject: str, started: str, seconds: float, host: str = "") -> Record:
    """A prediction as a record: ok where it could be made, refused where a file is no GGUF."""
    outcome = Outcome.REFUSED if prediction.unreadable else Outcome.OK
    reason = prediction.reasons[0] if prediction.unreadable else prediction.verdict
    return Record(
        Kind.PRECHECK,
        subject,
        outcome,
        reason,
        host=host,
        seconds=round(seconds, 4),
        started=started,
        versions={"build": str(prediction.build)},
        detail=prediction.as_json(),
    )


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the prediction for one pair."""
    arguments = parser().parse_args(argv)
    question = Question(
        build=arguments.build,
        spec_type=arguments.spec_type,
        settings=Settings(
            ctx=arguments.ctx,
            ubatch=arguments.ubatch,
            slots=arguments.slots,
            cache_k=arguments.cache_k,
            cache_v=arguments.cache_v,
            swa_full=arguments.swa_full,
            draft_max=arguments.drafted,
        ),
        budget=arguments.memory,
        drafted=arguments.drafted,
        relative_cost=arguments.relative_cost,
        verify_cost=arguments.verify_cost,
        deep=arguments.deep,
    )
    started, begun = utc_now(), time.monotonic()
    prediction = precheck_files(arguments.target, arguments.drafter, question)
    if arguments.record is not None:
        subject = f"{prediction.target}+{prediction.drafter}" if prediction.drafter else prediction.target
        record = prediction_record(prediction, subject, started, time.monotonic() - begun, arguments.host)
        write_record(arguments.record, record)
    if arguments.json:
        print(json.dumps(prediction.as_json(), indent=1, ensure_ascii=True))
    else:
        sys.stdout.write(prediction.text())
    return 1 if prediction.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())

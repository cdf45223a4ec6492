"""The cheap tests over every build that can be had: what `timeline` and `bisect_<attempt>` run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from findings.config import Backend, Configuration, Converter, Driver, Engine, StudyAttempt


def engines_of_timeline(configuration: Configuration) -> list[Engine]:
    """Engines that need nothing but an environment and a CPU, by build."""
    usable = [
        engine
        for engine in configuration.engines.values()
        if engine.driver is Driver.XLLAMACPP and engine.backend is Backend.CPU and engine.environment
    ]
    return sorted(usable, key=lambda engine: engine.build)


def converters_of_timeline(configuration: Configuration) -> list[Converter]:
    """All converters, by build."""
    return sorted(configuration.converters.values(), key=lambda converter: converter.build)


def with_all_builds(configuration: Configuration) -> Configuration:
    """The configuration with every build in the place of those that the study loads and converts with.

    Attempts that load or convert nothing stay as they are, and nothing more is measured.
    """
    engines = tuple(engine.id for engine in engines_of_timeline(configuration))
    converters = tuple(converter.id for converter in converters_of_timeline(configuration))

    def widened(attempt: StudyAttempt) -> StudyAttempt:
        return replace(
            attempt,
            load=engines if attempt.load else (),
            convert=tuple(replace(item, converters=converters) for item in attempt.convert),
            measure=(),
        )

    attempts = {name: widened(attempt) for name, attempt in configuration.study.attempts.items()}
    return replace(configuration, study=replace(configuration.study, attempts=attempts))


@dataclass(frozen=True)
class Flip:
    """Two neighbouring builds between which an outcome flips (`holds` up to the first, not from the second on)."""

    holds_at: int
    fails_at: int


def next_build(builds: Sequence[int], known: dict[int, bool]) -> int | None:
    """The build to try next in a bisection; None when neighbours are known or there is no flip.

    `builds` rising; `known` maps builds that were tried to whether the finding held there. The first and the last
    build come first, since without a flip between them there is nothing to halve. Builds that gave no answer must be
    left out of `builds` by the caller.
    """
    if not builds:
        return None
    for end in (builds[0], builds[-1]):
        if end not in known:
            return end
    flip = current_flip(builds, known)
    if flip is None:
        return None
    between = [build for build in builds if flip.holds_at < build < flip.fails_at]
    return between[len(between) // 2] if between else None


def current_flip(builds: Sequence[int], known: dict[int, bool]) -> Flip | None:
    """The closest pair known so far with the finding holding at the lower and not at the higher build."""
    held = [build for build in builds if known.get(build) is True]
    failed = [build for build in builds if known.get(build) is False]
    pairs = [(low, high) for low in held for high in failed if low < high]
    if not pairs:
        return None
    low, high = min(pairs, key=lambda pair: (pair[1] - pair[0], pair[0]))
    return Flip(low, high)

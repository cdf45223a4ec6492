"""Which builds a timeline takes, and how a bisection halves its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from findings.all_builds import converters_of_timeline, current_flip, engines_of_timeline, next_build, with_all_builds
from findings.config import Driver, load_configuration

ROOT = Path(__file__).parents[2]
BUILDS = [8672, 8929, 9093, 9294, 9538, 9713, 9873, 10068, 10229, 10566, 10809, 11063, 11549]


def bisect(builds: list[int], holds_until: int | None) -> tuple[list[int], tuple[int, int] | None]:
    """The builds tried and the flip found where the finding holds up to `holds_until`."""
    known: dict[int, bool] = {}
    tried: list[int] = []
    while (build := next_build(builds, known)) is not None:
        assert build not in known
        tried.append(build)
        known[build] = holds_until is not None and build <= holds_until
    flip = current_flip(builds, known)
    return tried, (flip.holds_at, flip.fails_at) if flip else None


@pytest.mark.parametrize("position", range(len(BUILDS) - 1))
def test_every_flip_is_found_between_neighbours_with_few_trials(position: int) -> None:
    tried, flip = bisect(BUILDS, BUILDS[position])
    assert flip == (BUILDS[position], BUILDS[position + 1])
    assert len(tried) <= 2 + 4  # both ends, then log2(12) halvings


def test_without_a_flip_only_the_ends_are_tried() -> None:
    assert bisect(BUILDS, None) == ([8672, 11549], None)
    assert bisect(BUILDS, 11549) == ([8672, 11549], None)
    assert next_build([], {}) is None


def test_a_finding_that_began_to_hold_is_no_flip() -> None:
    assert current_flip([1, 2], {1: False, 2: True}) is None


def test_the_timeline_takes_every_build_and_measures_nothing() -> None:
    configuration = load_configuration(ROOT)
    wide = with_all_builds(configuration)
    engines = [engine.id for engine in engines_of_timeline(configuration)]
    assert len(engines) >= 13
    assert all(configuration.engines[name].driver is Driver.XLLAMACPP for name in engines)
    builds = [configuration.engines[name].build for name in engines]
    assert builds == sorted(builds)
    for name, attempt in wide.study.attempts.items():
        assert attempt.measure == ()
        if configuration.study.attempts[name].load:
            assert attempt.load == tuple(engines)
        for item in attempt.convert:
            assert item.converters == tuple(c.id for c in converters_of_timeline(configuration))

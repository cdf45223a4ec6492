"""Fixtures for tests with real engines: the project's configuration, its cache (filled when it is empty), records."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import engine_bench
from findings.arm_runner import Place
from findings.config import Configuration
from findings.groundwork import lay_groundwork


@pytest.fixture(scope="session")
def configuration() -> Configuration:
    return engine_bench.configuration()


@pytest.fixture(scope="session")
def place(configuration: Configuration, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Records of this host, both models of the study and the engine that it measures, as the workflow makes them."""
    records = tmp_path_factory.mktemp("records") / "test-host"
    missing = lay_groundwork(
        configuration,
        records,
        engine_bench.cache(),
        [engine_bench.TARGET, engine_bench.OTHER_VOCABULARY],
        [engine_bench.BINDING],
        lambda text: print(text, file=sys.stderr),
    )
    if missing:
        pytest.skip(f"SKIPPED, NOT TESTED: {'; '.join(f'{r.subject}: {r.reason}' for r in missing)}")
    return Place(records, Path(engine_bench.cache()), records)

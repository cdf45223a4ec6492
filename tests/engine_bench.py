"""Real engines and models for the tests, from the project's own configuration and cache (filled when it is empty)."""

import functools
from pathlib import Path

import pytest

from findings.cache import cache_root
from findings.config import Configuration, Engine, Speculation, load_configuration
from findings.engine.arms import Launch, ServerSettings, translate
from findings.engine.drivers import locate_binary
from findings.engine.features import Features
from findings.engine.probe import probe_features
from findings.environments import ensure_environment, environment_python
from findings.records import Outcome
from findings.sources import ensure_model
from findings.sources import model_path as path_of

ROOT = Path(__file__).parents[1]
TARGET, OTHER_VOCABULARY = "gemma-3-270m-q4-k-m", "smollm2-135m-q4-1"
BINDING, SERVER = "llama.cpp-b11549", "llama-server-b10068-wheel"
LIST = (
    "Repeat the following list three times exactly.\n"
    + "\n".join(f"{n}. item number {n} is kept in box {chr(64 + n)}" for n in range(1, 11))
    + "\nCopy 1:\n"
)
PROSE = "The history of the lighthouse begins"


@functools.cache
def configuration() -> Configuration:
    return load_configuration(ROOT)


@functools.cache
def cache() -> Path:
    return cache_root()


def engine(engine_id: str) -> Engine:
    return configuration().engines[engine_id]


@functools.cache
def program(engine_id: str) -> Path:
    found = engine(engine_id)
    record = ensure_environment(found.environment, ROOT / "envs" / f"{found.environment}.txt", cache())
    if record.outcome is not Outcome.OK:
        pytest.skip(f"SKIPPED, NOT TESTED: {engine_id} cannot be had here: {record.reason}")
    python = environment_python(record, cache())
    return python if found.driver.in_python else locate_binary(found, python)


@functools.cache
def features(engine_id: str) -> Features:
    return probe_features(engine(engine_id), program(engine_id))[0]


@functools.cache
def model(model_id: str) -> Path:
    record = ensure_model(configuration().models[model_id], cache(), ROOT)
    if record.outcome is not Outcome.OK:
        pytest.skip(f"SKIPPED, NOT TESTED: {model_id} cannot be had here: {record.reason}")
    return path_of(record, cache())


def settings(target: Path, drafter: Path | None = None, extra: tuple[str, ...] = ()) -> ServerSettings:
    return ServerSettings(model=target, drafter=drafter, threads=2, ctx=1024, batch=512, extra=extra)


def launch(engine_id: str, speculation: Speculation, server: ServerSettings) -> Launch:
    result = translate(speculation, features(engine_id), server)
    assert isinstance(result, Launch), result
    return result

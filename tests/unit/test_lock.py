"""The lock's file: its text, what is read back, and which models wait for it. The hub's part: test_hub_faults.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from findings.config import ConversionPlan, ConvertedFrom, Mirror, MirrorKind, Model, ModelFormat, StudyAttempt
from findings.lock import LockedFile, LockedModel, lock_path, lock_text, read_lock, update_lock, waiting_models
from findings.records import Outcome

ENTRY = LockedModel("m", "someone/model", "1f" * 20, (LockedFile("m.gguf", "a" * 64, 5_000_000_000),))
HUB = Mirror(MirrorKind.HUGGINGFACE, repo="someone/model", file="m.gguf", revision="main")
MODEL = Model("m", "M", ModelFormat.GGUF, file="m.gguf", mirrors=(HUB,), locked=False)


def test_lock_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "pascal")
    path.parent.mkdir()
    path.write_text(lock_text([ENTRY, replace(ENTRY, id="n")], "2026-12-02T00:00:00Z"))
    assert read_lock(path) == {"m": ENTRY, "n": replace(ENTRY, id="n")}
    assert path.name == "pascal.lock.yaml"


def test_lock_fits_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = Path(__file__).resolve().parent.parent.parent / "workflow" / "schemas"
    schema = yaml.safe_load((schemas / "lock.schema.yaml").read_text())
    schema["$defs"] = yaml.safe_load((schemas / "common.schema.yaml").read_text())["$defs"]
    document = yaml.load(lock_text([ENTRY], "2026-12-02T00:00:00Z"), Loader=yaml.BaseLoader)
    for model in document["models"]:
        for file in model["files"]:
            file["size_bytes"] = int(file["size_bytes"])
    jsonschema.validate(document, schema)


@pytest.mark.parametrize("text", ["", "{", "models: 3", "models: [{id: m}]", "[]", "- &a [*a]"])
def test_unreadable_lock_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pascal.lock.yaml"
    path.write_text(text)
    assert read_lock(path) == {}
    assert read_lock(tmp_path / "missing") == {}


def test_model_without_a_hub_mirror_is_told(tmp_path: Path) -> None:
    record = update_lock([replace(MODEL, mirrors=())], tmp_path / "x.lock.yaml", "x")
    assert record.outcome is Outcome.UNAVAILABLE
    assert "huggingface mirror" in record.reason
    assert not list(tmp_path.iterdir())


def test_nothing_to_lock_writes_nothing(tmp_path: Path) -> None:
    record = update_lock([], tmp_path / "x.lock.yaml", "x")
    assert (record.outcome, record.detail["written"]) == (Outcome.OK, False)
    assert not list(tmp_path.iterdir())


def test_models_of_roles_conversions_and_their_checkpoints_wait() -> None:
    checkpoint = replace(MODEL, id="c", format=ModelFormat.CHECKPOINT)
    made = replace(MODEL, id="made", locked=True, converted_from=ConvertedFrom("source", "converter"))
    models = [MODEL, checkpoint, made, replace(MODEL, id="source"), replace(MODEL, id="unused"), replace(MODEL, id="t")]
    attempts = {"attempt_4": StudyAttempt(roles={"drafter": "made"}, convert=(ConversionPlan("c", ()),))}
    study = SimpleNamespace(roles={"target": "t"}, attempts=attempts)
    configuration: Any = SimpleNamespace(study=study, models={model.id: model for model in models})
    assert [model.id for model in waiting_models(configuration)] == ["c", "source", "t"]

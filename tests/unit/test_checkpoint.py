"""The committed checkpoints are what their card says, and have the features of the official architecture."""

import json
import math
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make_checkpoint
from findings import checkpoint as ck
from findings.records import sha256_text

FOLDER = Path(__file__).parents[2] / "config" / "checkpoints"


def config(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name / "config.json").read_text())


def tensors(name: str) -> dict[str, Any]:
    """The header of the safetensors file: {tensor: {dtype, shape, data_offsets}}."""
    with (FOLDER / name / "model.safetensors").open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    return header


def read_int64(name: str, tensor: str) -> list[int]:
    data = (FOLDER / name / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    start, end = tensors(name)[tensor]["data_offsets"]
    return list(struct.unpack(f"<{(end - start) // 8}q", data[8 + size + start : 8 + size + end]))


def test_the_manifest_names_the_committed_bytes() -> None:
    manifest = ck.read_manifest(FOLDER)
    assert set(manifest["checkpoints"]) == set(ck.CHECKPOINT_IDS)
    for name, entry in manifest["checkpoints"].items():
        assert entry["files"] == ck.describe_files(FOLDER / name), name
        weights = sum(math.prod(t["shape"]) for t in tensors(name).values() if t["dtype"] == "BF16")
        buffers = sum(math.prod(t["shape"]) for n, t in tensors(name).items() if n.endswith("layer_scalar"))
        assert entry["parameters"] == weights - buffers, name


def test_the_card_is_made_from_the_manifest() -> None:
    card = (FOLDER / ck.CARD_NAME).read_text(encoding="utf-8")
    assert card == ck.render_card(ck.read_manifest(FOLDER))
    assert "prove function, not profit" in card
    for name, entry in ck.read_manifest(FOLDER)["checkpoints"].items():
        assert f"{entry['loss']:.3f}" in card
        assert all(file["sha256"] in card for file in entry["files"].values()), name


def test_nothing_that_can_run_code_and_nothing_large() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".md"}
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_the_three_have_the_official_classes() -> None:
    assert ck.checkpoint_architecture(FOLDER / ck.TARGET_ID) == "Gemma4ForConditionalGeneration"
    for name in (ck.DENSE_ID, ck.CENTROIDS_ID):
        assert ck.checkpoint_architecture(FOLDER / name) == "Gemma4AssistantForCausalLM"


def test_head_widths_are_written_as_the_published_checkpoints_have_them() -> None:
    for name in ck.CHECKPOINT_IDS:
        text = config(name)["text_config"]
        assert text["global_head_dim"] == ck.TargetSpec().global_head_dim, name
        assert "per_layer_config" not in text, name


def test_only_the_centroid_form_has_ordered_embeddings() -> None:
    assert not any("masked_embedding" in name for name in tensors(ck.DENSE_ID))
    assert config(ck.DENSE_ID)["use_ordered_embeddings"] is False
    told, found = config(ck.CENTROIDS_ID), tensors(ck.CENTROIDS_ID)
    assert told["use_ordered_embeddings"] is True
    assert found["masked_embedding.centroids.weight"]["shape"] == [told["num_centroids"], ck.CENTROIDS.hidden_size]
    assert 0 < told["centroid_intermediate_top_k"] < told["num_centroids"]
    order = read_int64(ck.CENTROIDS_ID, "masked_embedding.token_ordering")
    assert sorted(order) == list(range(ck.TargetSpec().vocab_size))
    assert order != sorted(order)


def test_the_drafters_have_no_keys_and_values_of_their_own() -> None:
    for name in (ck.DENSE_ID, ck.CENTROIDS_ID):
        assert not any(re.search(r"\.[kv]_proj\.", tensor) for tensor in tensors(name)), name
        assert config(name)["backbone_hidden_size"] == ck.TargetSpec().hidden_size


def test_the_three_share_one_tokenizer_with_gemmas_special_tokens() -> None:
    texts = {(FOLDER / name / "tokenizer.json").read_bytes() for name in ck.CHECKPOINT_IDS}
    assert len(texts) == 1
    model = json.loads(texts.pop())["model"]
    assert model["byte_fallback"] is True
    assert [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])][:5] == list(
        ck.SPECIAL_TOKENS
    )
    assert all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
    assert len(model["vocab"]) == ck.TargetSpec().vocab_size


def test_training_text_is_the_same_everywhere() -> None:
    text = "".join(ck.documents(20, 20260506))
    assert sha256_text(text) == "4474de4785851252455c865ca6bce036e8a8c1d29d49328911f142c4d39dd43b"
    assert text.isascii()


@given(st.lists(st.integers(0, 839), min_size=4, max_size=4))
def test_a_document_never_repeats_a_paragraph(start: list[int]) -> None:
    lines = ck.document(start, 840).splitlines()
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (ck.AssistantSpec(hidden_size=64), "hidden_size"),
        (ck.AssistantSpec(centroids=30, top_k=3), "centroids"),
        (ck.AssistantSpec(centroids=32, top_k=33), "top_k"),
        (ck.AssistantSpec(centroids=32, top_k=0), "top_k"),
    ],
)
def test_a_drafter_that_the_engine_would_refuse_is_refused_here(spec: ck.AssistantSpec, word: str) -> None:
    with pytest.raises(ck.CheckpointError, match=word):
        spec.check_against(ck.TargetSpec())


def test_layers_that_transformers_would_change_are_refused() -> None:
    with pytest.raises(ck.CheckpointError, match="multiple of 6"):
        ck.TargetSpec(layers=8)


@pytest.mark.parametrize("name", ["weights.bin", "model.pt", "optimizer.pkl", "a.ckpt"])
def test_a_file_that_can_run_code_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FOLDER / ck.DENSE_ID, folder)
    assert ck.checkpoint_files(folder)
    (folder / name).write_bytes(b"\x80")
    with pytest.raises(ck.CheckpointError, match=re.escape(name)):
        ck.checkpoint_files(folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_half_a_checkpoint_is_named(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FOLDER / ck.DENSE_ID, folder)
    (folder / missing).unlink()
    with pytest.raises(ck.CheckpointError, match=missing.replace("model", "").replace(".", r"\.")):
        ck.checkpoint_files(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"architectures": []}'])
def test_a_config_without_an_architecture_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ck.CheckpointError, match=r"config\.json"):
        ck.checkpoint_architecture(tmp_path)


def test_without_torch_the_command_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert make_checkpoint.main(["--out", str(tmp_path / "out")]) == 2
    assert "torch and transformers 5.24" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

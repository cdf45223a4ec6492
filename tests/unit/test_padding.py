"""The positive control: padded weights contribute nothing, and everything else is copied."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

import pad as command
from findings import padding
from findings.records import Kind, Outcome, Record, read_record, sha256_file, write_record

ROOT = Path(__file__).parents[2]
HIDDEN, WIDE, LAYERS = 8, 12, 2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return model(tmp_path / "tiny.gguf", np.float16)


def model(path: Path, kind: type, *, layers: int = LAYERS) -> Path:
    numbers = np.random.RandomState(1)
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_feed_forward_length(WIDE)
    writer.add_block_count(layers)
    writer.add_token_list(["a", "b", "c"])
    writer.add_key_value("x.flags", [True, False], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL)
    writer.add_tensor("token_embd.weight", numbers.normal(size=(3, HIDDEN)).astype(kind))
    for layer in range(layers):
        for name, shape in (("gate", (WIDE, HIDDEN)), ("up", (WIDE, HIDDEN)), ("down", (HIDDEN, WIDE))):
            writer.add_tensor(f"blk.{layer}.ffn_{name}.weight", numbers.normal(size=shape).astype(kind))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", numbers.normal(size=HIDDEN).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def fields(path: Path) -> dict[str, object]:
    return {
        name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF")
    }


def forward(weights: dict[str, np.ndarray], layer: int, x: np.ndarray) -> np.ndarray:
    """The layer's gated feed-forward step in float64."""
    gate, up, down = (weights[f"blk.{layer}.ffn_{name}.weight"].astype(np.float64) for name in ("gate", "up", "down"))
    z = gate @ x
    result: np.ndarray = down @ ((z / (1 + np.exp(-z))) * (up @ x))
    return result


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_a_padded_layer_computes_more_and_answers_the_same(tmp_path: Path, kind: type) -> None:
    original = model(tmp_path / "a.gguf", kind)
    padding.pad(original, tmp_path / "b.gguf", 20)
    old, new = tensors(original), tensors(tmp_path / "b.gguf")
    x = np.random.RandomState(2).normal(size=HIDDEN)
    for layer in range(LAYERS):
        assert new[f"blk.{layer}.ffn_up.weight"].shape == (WIDE + 20, HIDDEN)
        assert np.abs(new[f"blk.{layer}.ffn_up.weight"][WIDE:]).min() > 0
        np.testing.assert_allclose(forward(new, layer, x), forward(old, layer, x), rtol=0, atol=1e-12)
    assert list(new) == list(old)
    for name in ("token_embd.weight", "blk.0.ffn_norm.weight"):
        np.testing.assert_array_equal(new[name], old[name])
    assert new["blk.0.ffn_up.weight"].dtype == kind


def test_only_the_length_changes_in_the_header(source: Path, tmp_path: Path) -> None:
    padding.pad(source, tmp_path / "b.gguf", 20)
    before, after = fields(source), fields(tmp_path / "b.gguf")
    assert after.pop("gemma4.feed_forward_length") == WIDE + 20
    assert before.pop("gemma4.feed_forward_length") == WIDE
    assert after == before


def test_it_is_made_once_and_the_same_everywhere(source: Path, tmp_path: Path) -> None:
    digest = sha256_file(source)
    path, first = padding.padded(source, digest, "p.gguf", tmp_path / "cache", 20)
    made = path.stat().st_mtime_ns
    assert padding.padded(source, digest, "p.gguf", tmp_path / "cache", 20) == (path, first)
    assert path.stat().st_mtime_ns == made
    assert padding.padded(source, digest, "p.gguf", tmp_path / "elsewhere", 20)[1] == first
    assert padding.padded(source, digest, "p.gguf", tmp_path / "cache", 21)[0] != path
    path.write_bytes(b"damaged")
    assert padding.padded(source, digest, "p.gguf", tmp_path / "cache", 20)[1] == first
    assert sha256_file(path) == first


def test_what_cannot_be_padded_says_why(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(padding.PaddingError, match="more than 0"):
        padding.pad(source, out, 0)
    with pytest.raises(padding.PaddingError, match="no feed-forward weights"):
        padding.pad(model(tmp_path / "none.gguf", np.float16, layers=0), out, 5)
    (tmp_path / "text.gguf").write_text("no GGUF at all, but long enough to be looked at as one by a reader")
    with pytest.raises(padding.PaddingError, match="not a GGUF"):
        padding.pad(tmp_path / "text.gguf", out, 5)


def job(tmp_path: Path, source: Path | None) -> list[str]:
    """A project's folder of records with the tiny target as its converter left it, as arguments of the tool."""
    records, cache = tmp_path / "records" / "h", tmp_path / "cache"
    made = Record(Kind.CONVERSION, "t/c", Outcome.UNAVAILABLE, "no network")
    if source is not None:
        place = cache / "converted" / "k" / "tiny.gguf"
        place.parent.mkdir(parents=True)
        place.write_bytes(source.read_bytes())
        detail = {"sha256": sha256_file(place), "cache_path": "converted/k/tiny.gguf"}
        made = Record(Kind.CONVERSION, "t/c", Outcome.OK, detail=detail)
    write_record(records / "conversions" / "tiny-gemma4-target" / "converter-b11434.json", made)
    words = ["--config-root", str(ROOT), "--records", str(records), "--cache", str(cache)]
    return [*words, "--record", str(tmp_path / "r.json")]


def test_the_tool_records_what_the_copy_was_made_of(source: Path, tmp_path: Path) -> None:
    assert command.main([*job(tmp_path, source), "--model", "tiny-gemma4-target-padded"]) == 0
    record = read_record(tmp_path / "r.json")
    made = tmp_path / "cache" / record.detail["cache_path"]
    assert made.name == "tiny-gemma4-target-padded.gguf"
    assert sha256_file(made) == record.detail["sha256"]
    assert record.detail["original"] == {"model": "tiny-gemma4-target-f16", "sha256": sha256_file(source)}
    assert (record.detail["columns"], record.detail["artificial"], record.host) == (16000, True, "h")
    assert fields(made)["gemma4.feed_forward_length"] == WIDE + 16000
    assert str(tmp_path) not in json.dumps(dict(record.detail))


def test_the_tool_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = job(tmp_path, None)
    assert command.main([*arguments, "--model", "tiny-gemma4-target-padded"]) == 0
    record = read_record(tmp_path / "r.json")
    assert record.outcome is Outcome.NOT_RUN
    assert "tiny-gemma4-target-f16 is not here: unavailable: no network" in record.reason
    for other in ("tiny-gemma4-target-f16", "nothing"):
        with pytest.raises(SystemExit) as left:
            command.main([*arguments, "--model", other])
        assert left.value.code == 2
        assert f"--model {other}: config/models.yaml has no such model with padded_from" in capsys.readouterr().err


def test_a_file_that_cannot_be_padded_ends_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no GGUF at all, but long enough to be looked at as one by a reader")
    assert command.main([*job(tmp_path, text), "--model", "tiny-gemma4-target-padded"]) == 1
    assert "not a GGUF" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()
    assert [p.name for p in (tmp_path / "cache").rglob("*") if p.suffix in {".part", ".gguf"}] == ["tiny.gguf"]

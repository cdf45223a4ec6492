"""The memory plan: exact where the engine's formulas are known, near where the compute buffer is an estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from findings.engine_rules import behaviour
from findings.gguf_header import read_header
from findings.memory_plan import (
    MemoryPlan,
    MemoryPlanError,
    ModelMemory,
    Settings,
    cache_bytes,
    compute_bytes,
    parse_size,
    plan_model,
    row_bytes,
)
from findings.model_facts import Shape, shape
from findings.payoff import bytes_per_token, payoff, tokens_per_round

MIB = 1 << 20
# The shapes of the two models of the study `mini`, and what engines of three builds printed for them.
GEMMA = Shape(
    architecture="gemma3",
    name="",
    layers=18,
    width=640,
    width_out=640,
    context=32768,
    heads=(4,) * 18,
    kv_heads=(1,) * 18,
    key_length=(256,) * 18,
    value_length=(256,) * 18,
    feed_forward=(2048,) * 18,
    window=512,
    windowed=tuple(layer % 6 < 5 for layer in range(18)),
    kv_layers=18,
    nextn_layers=0,
    experts=0,
    experts_used=0,
    per_layer_width=0,
)
SMOL = replace(
    GEMMA,
    architecture="llama",
    layers=30,
    width=576,
    width_out=576,
    heads=(9,) * 30,
    kv_heads=(3,) * 30,
    key_length=(64,) * 30,
    value_length=(64,) * 30,
    feed_forward=(1536,) * 30,
    window=0,
    windowed=(False,) * 30,
    kv_layers=30,
)


@pytest.mark.parametrize(
    ("shape_", "settings", "mib"),
    [
        (GEMMA, Settings(ctx=2048, ubatch=512), 21.0),
        (GEMMA, Settings(ctx=512, ubatch=64), 9.0),
        (GEMMA, Settings(ctx=2048, ubatch=512, swa_full=True), 36.0),
        (GEMMA, Settings(ctx=2000, ubatch=512), 21.0),
        (SMOL, Settings(ctx=2048, ubatch=512), 45.0),
        (SMOL, Settings(ctx=2048, cache_k="q8_0", cache_v="q8_0"), 45.0 * 34 / 64),
        (replace(SMOL, kv_layers=10), Settings(ctx=2048), 15.0),
    ],
)
def test_the_cache_is_what_engines_print(shape_: Shape, settings: Settings, mib: float) -> None:
    assert cache_bytes(shape_, settings) == int(mib * MIB)


@pytest.mark.parametrize(
    ("shape_", "vocabulary", "ctx", "ubatch", "build", "printed_mib"),
    [
        (GEMMA, 262144, 2048, 512, 8929, 520.27),
        (GEMMA, 262144, 512, 64, 8929, 64.31),
        (SMOL, 49152, 2048, 512, 8929, 99.38),
        (GEMMA, 262144, 2048, 512, 9538, 20.77),
        (GEMMA, 262144, 512, 64, 9538, 2.35),
        (SMOL, 49152, 2048, 512, 9538, 15.51),
        (GEMMA, 262144, 2048, 512, 11549, 21.28),
        (GEMMA, 262144, 512, 64, 11549, 2.41),
        (SMOL, 49152, 2048, 512, 11549, 16.64),
    ],
)
def test_the_compute_buffer_is_near_what_engines_print(
    shape_: Shape, vocabulary: int, ctx: int, ubatch: int, build: int, printed_mib: float
) -> None:
    estimate = compute_bytes(shape_, vocabulary, Settings(ctx=ctx, ubatch=ubatch), behaviour(build), 0) / MIB
    assert printed_mib * 0.97 < estimate < printed_mib * 1.15


def test_quantized_caches_need_whole_blocks() -> None:
    assert row_bytes(256, "q4_0") == 144
    with pytest.raises(MemoryPlanError, match="multiple of 32"):
        row_bytes(40, "q8_0")
    with pytest.raises(MemoryPlanError, match="q9_9"):
        row_bytes(32, "q9_9")


def memory(total: int) -> ModelMemory:
    return ModelMemory(total, 0, 0, 0, 0, 0, 1, 0, 0)


def test_what_does_not_fit_is_counted() -> None:
    plan = MemoryPlan(memory(700), memory(400), 1000, Settings())
    assert (plan.fits, plan.spills, plan.total) == (False, 100, 1100)
    assert replace(plan, budget=1100).fits is True
    assert replace(plan, budget=None).fits is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 << 30),
        ("6g", 6 << 30),
        ("512 MB", 512_000_000),
        ("800MiB", 800 << 20),
        ("1000000", 10**6),
        ("1.5GiB", 3 << 29),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "6 apples", "-1GiB", "nan", "inf", "1e30GiB", "0"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(MemoryPlanError):
        parse_size(text)


def test_gemma_4_shares_layers_and_keeps_per_layer_embeddings_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "gemma4")
    writer.add_block_count(6)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv([1, 1, 1, 1, 1, 2])
    writer.add_feed_forward_length([128, 128, 128, 256, 256, 256])
    writer.add_sliding_window(512)
    writer.add_uint32("gemma4.attention.key_length", 64)
    writer.add_uint32("gemma4.attention.value_length", 64)
    writer.add_uint32("gemma4.attention.key_length_swa", 32)
    writer.add_uint32("gemma4.attention.value_length_swa", 32)
    writer.add_uint32("gemma4.attention.shared_kv_layers", 2)
    writer.add_array("gemma4.attention.sliding_window_pattern", [True, True, False, True, True, False])
    writer.add_tensor("per_layer_token_embd.weight", np.zeros((100, 96), dtype=np.float32))
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    settings = Settings(ctx=4096, ubatch=512)
    plan = plan_model(header, header.tensors, 100, settings, behaviour(11549))
    # Layers 0, 1 and 3 keep 1024 cells of 2 x 32 f16, layer 2 keeps 4096 of 2 x 64; layers 4 and 5 share.
    assert plan.kv_cache == 3 * 1024 * 2 * 32 * 2 + 4096 * 2 * 64 * 2
    assert (plan.full_layers, plan.windowed_layers, plan.sharing_layers) == (1, 3, 2)
    assert plan.per_layer_embeddings == 100 * 96 * 4
    assert shape(header).feed_forward[3] == 256
    # The token embeddings serve as output, the per-layer ones are looked up by row.
    assert bytes_per_token(header, header.tensors) == 100 * 64 * 4


def test_a_drafter_as_costly_as_the_target_never_pays() -> None:
    found = payoff(1.0, 3)
    assert found.never
    assert found.acceptance_needed > 1
    assert payoff(1.2, 16).never
    assert not payoff(0.99, 3).never
    assert payoff(0.2, 3, verify_cost=4.0).never


@pytest.mark.parametrize(("cost", "drafted", "verify"), [(0.1, 3, 1.0), (0.4, 16, 1.0), (0.05, 7, 2.5)])
def test_the_acceptance_needed_breaks_even(cost: float, drafted: int, verify: float) -> None:
    found = payoff(cost, drafted, verify)
    assert tokens_per_round(found.acceptance_needed, drafted) == pytest.approx(drafted * cost + verify)
    assert found.best_speedup == pytest.approx((drafted + 1) / (drafted * cost + verify))


def test_costs_must_be_costs() -> None:
    for cost, drafted, verify in ((0.0, 3, 1.0), (0.5, 0, 1.0), (0.5, 3, 0.0)):
        with pytest.raises(ValueError, match="above 0"):
            payoff(cost, drafted, verify)

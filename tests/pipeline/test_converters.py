"""The official drafter's architecture through real converters: refused in their own words, and since when not."""

import json

import pytest

import converter_bench as cb
import engine_bench as bench
from findings.gguf_header import read_header
from findings.records import Outcome

pytestmark = pytest.mark.engine
REFUSING = ("converter-b9002", "converter-b9538")
DRAFTERS = (cb.DENSE, cb.CENTROIDS)


@pytest.mark.parametrize("converter", [*REFUSING, cb.NEWEST])
def test_the_target_converts_in_every_build(converter: str) -> None:
    record = cb.converted(cb.TARGET, converter)
    assert (record.outcome, record.reason) == (Outcome.OK, "")
    header = read_header(bench.cache() / record.detail["cache_path"])
    assert header.text("general.architecture") == "gemma4"


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("converter", REFUSING)
def test_converters_before_the_architecture_refuse_both_drafters(converter: str, drafter: str) -> None:
    record = cb.converted(drafter, converter)
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.reason == "Model Gemma4AssistantForCausalLM is not supported"
    assert record.exit_code == 1
    assert "ERROR:hf-to-gguf:Model Gemma4AssistantForCausalLM is not supported" in [*record.log_head, *record.log_tail]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_newest_converter_takes_both_forms(drafter: str) -> None:
    record = cb.converted(drafter)
    assert (record.outcome, record.reason) == (Outcome.OK, "")
    header = read_header(bench.cache() / record.detail["cache_path"])
    assert header.text("general.architecture") == "gemma4-assistant"


def test_the_centroids_are_left_out_by_the_converter() -> None:
    names = {tensor.name for tensor in read_header(cb.converted_path(cb.CENTROIDS)).tensors}
    assert names == {tensor.name for tensor in read_header(cb.converted_path(cb.DENSE)).tensors}
    assert not [name for name in names if "centroid" in name or "masked" in name]


def test_converting_again_gives_the_same_bytes_from_the_cache() -> None:
    first = cb.converted(cb.DENSE)
    cb.converted.cache_clear()
    second = cb.converted(cb.DENSE)
    assert second.detail["reused"] is True
    assert second.detail["sha256"] == first.detail["sha256"]


def test_records_of_real_conversions_name_no_folder() -> None:
    for converter in (*REFUSING, cb.NEWEST):
        record = cb.converted(cb.DENSE, converter)
        text = json.dumps([record.argv, record.log_head, record.log_tail, record.reason])
        assert str(bench.cache()) not in text
        assert str(bench.ROOT) not in text

"""Others' measurements: the file that is committed, llama-bench's four forms of three generations, and damaged ones."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from findings import imports
from findings.evidence import imported_effects
from findings.imports import Format, Imported, ImportedFileError, Origin, read_import

COMMITTED = Path("config/imports/inventivehq-gtx-1080-ti.json")
ORIGIN = Origin("config/imports/x", "a source", "CC BY 4.0")


def committed() -> Imported:
    return read_import(COMMITTED, Origin(COMMITTED.as_posix(), "InventiveHQ", "CC BY 4.0"))


# --- per-prompt records ----------------------------------------------------------------------------------------------


def test_the_committed_file_gives_a_row_per_answer_with_source_and_licence() -> None:
    found = committed()
    raw = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert len(found.measurements) == sum(len(run["records"]) for run in raw["runs"]) == 72
    for row in found.measurements:
        assert (row["evidence"], row["source"], row["licence"]) == ("imported", "InventiveHQ", "CC BY 4.0")
        assert (row["host"], row["quantization"]) == ("gtx-1080-ti", "Q4_K_S")
        assert row["tg_tokens_per_s"] == pytest.approx(row["predicted_tokens"] / row["predicted_ms"] * 1000)
    first = raw["runs"][0]["records"][0]
    assert found.measurements[0]["tg_tokens_per_s"] == pytest.approx(first["tps"])
    assert found.hosts[0]["compute_capability"] == "6.1"


def test_n_gram_rows_without_drafts_are_engaged_without_drafts() -> None:
    rows = [row for row in committed().measurements if row["arm"] == "ngram"]
    states = {(row["backend"], row["prompt_id"]): row["engagement"] for row in rows}
    drafted = {key for key, state in states.items() if state == "engaged_with_drafts"}
    assert len(states) == 24
    assert drafted == {("vulkan", "reason_plan")}
    assert {row["engagement"] for row in committed().measurements if row["arm"] == "baseline"} == {"off"}


def test_no_effect_is_made_of_n_grams_that_drafted_nothing_and_blocks_stay_unknown() -> None:
    effects = imported_effects(committed().measurements)
    silent = [row for row in effects if row["arm"] == "ngram"]
    assert silent
    assert all(row["ln_ratio"] is None and row["arm_tg_tokens_per_s"] is None and row["reason"] for row in silent)
    assert {row["block"] for row in effects} == {None}
    drafts = {(r["backend"], r["prompt_class"]): r["ln_ratio"] for r in effects if r["arm"] == "draft_0_5b"}
    assert drafts[("vulkan", "all")] < drafts[("cuda", "all")] < 0 < drafts[("cuda", "code")]


def test_effects_follow_from_tokens_and_times() -> None:
    """Recomputed here from the raw file, class by class."""
    raw = json.loads(COMMITTED.read_text(encoding="utf-8"))
    runs = {(run["backend"], run["method"]): run["records"] for run in raw["runs"]}

    def speed(records: list[dict[str, Any]]) -> float:
        chosen = [r for r in records if r["category"] == "math"]
        return sum(r["predicted_n"] for r in chosen) / sum(r["predicted_ms"] for r in chosen)

    expected = math.log(speed(runs[("cuda", "draft_0_5b")]) / speed(runs[("cuda", "baseline")]))
    effects = imported_effects(committed().measurements)
    found = [e for e in effects if (e["backend"], e["arm"], e["prompt_class"]) == ("cuda", "draft_0_5b", "math")]
    assert [e["ln_ratio"] for e in found] == [pytest.approx(expected)]


def test_one_run_per_prompt_is_said_to_limit_every_verdict() -> None:
    found = committed()
    assert found.limits == (imports.ONE_RUN,)
    assert {row["reason"] for row in found.outcomes} == {imports.ONE_RUN}
    assert "no interval" in imports.ONE_RUN


def test_a_run_that_failed_is_an_outcome(tmp_path: Path) -> None:
    raw = json.loads(COMMITTED.read_text(encoding="utf-8"))
    raw["runs"] = [
        {"backend": "cuda", "method": "draft_big", "status": "oom", "records": []},
        {"backend": "cuda", "method": "mtp", "status": "server died"},
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    found = read_import(path, ORIGIN)
    assert [(r["arm"], r["outcome"], r["reason"]) for r in found.outcomes] == [
        ("draft_big", "out_of_memory", "oom"),
        ("mtp", "crashed", "server died"),
    ]


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    """The committed file with one value changed (or removed, for ...)."""
    raw: Any = json.loads(COMMITTED.read_text(encoding="utf-8"))
    place = raw
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return dict(raw)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["meta"], ..., r"file\.meta is missing"),
        (["meta", "target"], 7, r"meta\.target is '7', expected str"),
        (["runs", 1, "method"], ..., r"runs\[1\]\.method is missing"),
        (["runs", 1], "x", r"runs\[1\] is no object"),
        (["runs", 0, "records", 2, "predicted_n"], "many", r"runs\[0\]\.records\[2\]\.predicted_n is 'many'"),
        (["runs", 0, "records", 2, "predicted_ms"], -1, "below 0"),
        (["runs", 0, "records", 2, "predicted_ms"], float("nan"), "expected a finite number"),
        (["runs", 0, "records", 2, "draft_n"], 1.5, r"draft_n is 1\.5, expected a count or null"),
    ],
)
def test_a_wrong_value_is_named_by_file_key_and_mend(path: list[Any], value: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(changed(path, value)), encoding="utf-8")
    with pytest.raises(ImportedFileError, match=message) as caught:
        read_import(file, ORIGIN)
    assert "broken.json" in str(caught.value)


# --- llama-bench ----------------------------------------------------------------------------------------------------

_HEAD = (
    "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params n_batch"
)
_TAIL = "n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts"
# Fields in the order in which each generation's source lists them (the middle is what changed).
GENERATIONS = {
    "2025-04": f"{_HEAD} n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers split_mode main_gpu "
    f"no_kv_offload flash_attn tensor_split tensor_buft_overrides use_mmap embeddings {_TAIL}",
    "2026-05": f"{_HEAD} n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode "
    f"main_gpu no_kv_offload flash_attn devices tensor_split tensor_buft_overrides use_mmap use_direct_io embeddings "
    f"no_op_offload no_host fit_target fit_min_ctx {_TAIL}",
    "2026-10": f"{_HEAD} n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode "
    f"main_gpu no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode embeddings no_op_offload "
    f"no_host fit_target fit_min_ctx {_TAIL}",
}
VALUES: dict[str, Any] = {
    "build_commit": "8cf427ff",
    "build_number": 8992,
    "cpu_info": "Some CPU",
    "gpu_info": "NVIDIA GeForce GTX 1060 6GB",
    "backends": "CUDA",
    "model_filename": "/home/" + "someone/models/gemma-3-270m-Q4_K_M.gguf",
    "model_type": "gemma3 270M Q4_K - Medium",
    "model_size": 253113024,
    "model_n_params": 268098176,
    "type_k": "f16",
    "type_v": "f16",
    "split_mode": "layer",
    "cpu_mask": "0x0",
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "load_mode": "mmap",
    "no_kv_offload": False,
    "embeddings": False,
    "use_mmap": True,
    "cpu_strict": False,
    "test_time": "2026-05-06T11:57:09Z",
}
TESTS = (
    {"n_prompt": 512, "n_gen": 0, "samples_ns": [70_000_000, 70_571_320]},
    {"n_prompt": 0, "n_gen": 128, "samples_ns": [1_060_000_000, 1_074_863_200]},
)


def entries(generation: str) -> list[dict[str, Any]]:
    made = []
    for test in TESTS:
        samples = test["samples_ns"]
        assert isinstance(samples, list)
        entry = {name: VALUES.get(name, 0) for name in GENERATIONS[generation].split()}
        entry |= test | {"avg_ns": sum(samples) // len(samples), "samples_ts": [1.0, 1.0]}
        made.append(entry)
    return made


def as_text(value: Any) -> str:
    """A value as the CSV and SQL printers write it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def printed(generation: str, form: Format) -> str:
    """What llama-bench of that generation prints, after its printers' code."""
    listed = entries(generation)
    if form is Format.LLAMA_BENCH_JSON:
        return json.dumps(listed, indent=2)
    if form is Format.LLAMA_BENCH_JSONL:
        return "".join(json.dumps(entry) + "\n" for entry in listed)
    names = GENERATIONS[generation].split()
    rows = [[as_text(entry[name]) for name in names] for entry in listed]
    if form is Format.LLAMA_BENCH_CSV:
        quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row) for row in rows]
        return "\n".join([",".join(names), *quoted]) + "\n"
    create = "CREATE TABLE IF NOT EXISTS llama_bench (\n" + ",\n".join(f"  {name} TEXT" for name in names) + "\n);\n\n"
    head = f"INSERT INTO llama_bench ({', '.join(names)}) VALUES ("
    return create + "".join(head + ", ".join(f"'{value}'" for value in row) + ");\n" for row in rows)


BENCH_FORMS = [form for form in Format if form.value.startswith("llama_bench")]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("form", BENCH_FORMS)
def test_llama_bench_of_every_generation_and_form(generation: str, form: Format, tmp_path: Path) -> None:
    path = tmp_path / "bench.out"
    path.write_text(printed(generation, form), encoding="utf-8")
    assert imports.detect(path) is form
    found = read_import(path, ORIGIN)
    repeats = 2 if form in (Format.LLAMA_BENCH_JSON, Format.LLAMA_BENCH_JSONL) else 1
    assert [(r["prompt_id"], r["repetition"]) for r in found.measurements] == [
        (test, number) for test in ("pp512", "tg128") for number in range(1, repeats + 1)
    ]
    prompt, generation_row = found.measurements[0], found.measurements[-1]
    assert prompt["pp_tokens_per_s"] == pytest.approx(512 / 0.07 if repeats == 2 else 512 / 0.07028566)
    assert prompt["tg_tokens_per_s"] is None
    assert generation_row["tg_tokens_per_s"] == pytest.approx(128 / 1.0748632 if repeats == 2 else 128 / 1.0674316)
    assert generation_row["speculation"] == "none"
    assert (generation_row["arm_kind"], generation_row["engagement"]) == ("baseline", "off")
    assert (generation_row["build"], generation_row["backend"]) == (8992, "cuda")
    assert (generation_row["host"], generation_row["quantization"]) == ("gtx-1060-6gb", "Q4_K_M")
    assert generation_row["model"] == "gemma-3-270m-Q4_K_M.gguf"
    assert "someone" not in json.dumps([found.measurements, found.outcomes, found.hosts])
    settings = json.loads(found.outcomes[0]["detail_json"])
    assert settings.get("load_mode") == ("mmap" if generation == "2026-10" else None)


@pytest.mark.parametrize("form", BENCH_FORMS)
def test_output_that_was_cut_off_is_refused(form: Format, tmp_path: Path) -> None:
    path = tmp_path / "cut.out"
    text = printed("2026-10", form)
    path.write_text(text[: len(text) - 60], encoding="utf-8")
    with pytest.raises(ImportedFileError, match=r"cut\.out"):
        read_import(path, ORIGIN)


def test_log_lines_before_the_output_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "bench.out"
    for form in BENCH_FORMS:
        path.write_text("ggml_cuda_init: found 1 CUDA devices:\n" + printed("2026-05", form), encoding="utf-8")
        assert imports.detect(path) is form
        assert read_import(path, ORIGIN).measurements


def test_a_prompt_and_generation_test_has_no_speed_and_is_left_out(tmp_path: Path) -> None:
    entry = copy.deepcopy(entries("2026-05")[0]) | {"n_prompt": 512, "n_gen": 128}
    path = tmp_path / "pg.json"
    path.write_text(json.dumps([entry, entries("2026-05")[1]]), encoding="utf-8")
    found = read_import(path, ORIGIN)
    assert {row["prompt_id"] for row in found.measurements} == {"tg128"}
    assert "1 tests of prompt and generation together left out" in found.notes[0]


def test_sql_is_read_and_never_executed(tmp_path: Path) -> None:
    """A model name with a quote, which llama-bench does not escape, and a statement that must not matter."""
    text = printed("2026-10", Format.LLAMA_BENCH_SQL).replace("gemma-3-270m", "it's-gemma")
    path = tmp_path / "bench.sql"
    path.write_text(text + "ATTACH DATABASE 'x.db' AS x;\nDROP TABLE llama_bench;\n", encoding="utf-8")
    assert read_import(path, ORIGIN).measurements[0]["model"] == "it's-gemma-Q4_K_M.gguf"
    assert [p.name for p in tmp_path.iterdir()] == ["bench.sql"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_gen", ..., r"test 1\.n_gen is missing"),
        ("build_number", "new", r"build_number is 'new', expected a count"),
        ("avg_ns", ..., r"test 1\.avg_ns is missing"),
        ("samples_ns", [0], "times above 0"),
        ("model_filename", 3, r"model_filename is '3', expected str"),
    ],
)
def test_wrong_values_of_llama_bench_are_named(key: str, value: Any, message: str, tmp_path: Path) -> None:
    entry = entries("2026-10")[0]
    if value is ...:
        del entry[key]
    else:
        entry[key] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    with pytest.raises(ImportedFileError, match=message) as caught:
        read_import(path, ORIGIN)
    assert "wrong.json" in str(caught.value)


def test_old_forks_with_flags_in_the_place_of_backends(tmp_path: Path) -> None:
    entry = entries("2025-04")[1]
    del entry["backends"]
    path = tmp_path / "fork.json"
    path.write_text(json.dumps([entry | {"cuda": False, "vulkan": True}]), encoding="utf-8")
    assert read_import(path, ORIGIN).measurements[0]["backend"] == "vulkan"


@pytest.mark.parametrize("text", ["", "hello", "| model | size |\n| --- | --- |\n", "<html></html>", '{"a": 1}', "[]"])
def test_unknown_files_are_refused_with_what_can_be_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "what.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ImportedFileError, match=r"what\.txt: not a form that this project reads"):
        read_import(path, ORIGIN)


def test_missing_and_undecodable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ImportedFileError, match=r"none\.json: not readable"):
        read_import(tmp_path / "none.json", ORIGIN)
    path = tmp_path / "latin.json"
    path.write_bytes(printed("2026-10", Format.LLAMA_BENCH_JSON).encode().replace(b"Some CPU", b"Some \xe4 CPU"))
    with pytest.raises(ImportedFileError, match=r"latin\.json: not UTF-8"):
        read_import(path, ORIGIN)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-3-270m-Q4_K_M.gguf", "Q4_K_M"),
        ("x.IQ2_XXS.gguf", "IQ2_XXS"),
        ("model-BF16.gguf", "BF16"),
        ("qwen2 7B Q4_K - Medium", "Q4_K"),
        ("plain.gguf", ""),
    ],
)
def test_quantization_by_name(name: str, expected: str) -> None:
    assert imports.quantization(name) == expected

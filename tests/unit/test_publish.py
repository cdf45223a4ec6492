"""The document: every figure from data, the same bytes whatever the order of rows, nothing private, our own words."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

from findings import publish as publishing
from findings import words
from findings.config import Configuration, load_configuration
from findings.leakscan import LeakError
from findings.publish import TEMPLATES, publish, render_document
from findings.story import Story, in_order, read_rows, table_files, tell
from findings.tables import TableError
from findings.view import Scanned, claim_lines
from sample_tables import Row, rows, write

ROOT = Path(__file__).parents[2]
SCANNED = Scanned(files=13, lines=1000, allowed={})


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


@pytest.fixture
def sample() -> dict[str, list[Row]]:
    return copy.deepcopy(rows())


def complete(sample: dict[str, list[Row]], folder: Path) -> dict[str, list[Any]]:
    """The rows as they come back from Parquet, with every column."""
    return {name: list(found) for name, found in read_rows(write(folder, sample)).items()}


def document(configuration: Configuration, sample: dict[str, list[Row]], folder: Path) -> str:
    return render_document(tell(configuration, complete(sample, folder)), "figures", SCANNED)


@pytest.fixture(scope="module")
def whole(configuration: Configuration, tmp_path_factory: pytest.TempPathFactory) -> str:
    return document(configuration, rows(), tmp_path_factory.mktemp("tables"))


def test_the_template_holds_no_figure() -> None:
    text = (TEMPLATES / "document.md.j2").read_text(encoding="utf-8")
    static = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", text, flags=re.DOTALL)
    assert len(static) > 2000
    assert re.findall(r".*\d.*", static) == []
    # Nor may an expression smuggle one in as text.
    literals = re.findall(r"\"[^\"]*\"|'[^']*'", " ".join(re.findall(r"\{\{(.*?)\}\}", text, flags=re.DOTALL)))
    assert [literal for literal in literals if re.search(r"\d", literal)] == []


def test_order_of_rows_does_not_matter(configuration: Configuration, whole: str, tmp_path: Path) -> None:
    shuffled = complete(rows(), tmp_path)
    for found in shuffled.values():
        random.Random(4).shuffle(found)
    told = tell(configuration, {name: in_order(found) for name, found in shuffled.items()})
    assert render_document(told, "figures", SCANNED) == whole


def _set(sample: dict[str, list[Row]], table: str, column: str, value: Any, **where: Any) -> None:
    chosen = [row for row in sample[table] if all(row.get(k) == v for k, v in where.items())]
    assert chosen
    for row in chosen:
        row[column] = value


@pytest.mark.parametrize(
    ("table", "column", "value", "where", "expected"),
    [
        ("verdicts", "change_percent", -7.77, {"verdict": "inconclusive"}, "−7.8 %"),
        ("verdicts", "change_low_percent", -22.22, {"verdict": "inconclusive"}, "−22.2 %"),
        ("verdicts", "blocks", 17, {"verdict": "inconclusive"}, "17 blocks"),
        ("verdicts", "blocks_needed", 77, {"verdict": "inconclusive"}, "About 77 blocks"),
        ("verdicts", "fails_since_build", 9777, {"verdict": "no_longer_holds"}, "not since b9777"),
        ("verdicts", "reason", "31 of 47 accepted", {"verdict": "inconclusive"}, "31 of 47 accepted"),
        ("verdicts", "failed_gates", ["null_equal"], {"verdict": "inconclusive"}, "Failed gates: null equal."),
        ("effects", "ln_ratio", 0.5, {"attempt": "attempt_4", "arm": "mtp_centroids"}, "+64.9 %"),
        ("measurements", "draft_tokens", 400, {"evidence": "imported", "arm": "draft"}, "of 3200 (38 %)"),
        ("measurements", "tg_tokens_per_s", 12.5, {"evidence": "imported", "arm": "ngram"}, "12.5 tokens/s"),
        ("outcomes", "reason", "exit code 134", {"converter": "converter-b9002"}, "exit code 134"),
        ("hosts", "host", "other-cpu-8core", {"evidence": "measured"}, "on other-cpu-8core"),
    ],
)
def test_a_changed_value_changes_the_text(
    configuration: Configuration,
    sample: dict[str, list[Row]],
    whole: str,
    tmp_path: Path,
    table: str,
    column: str,
    value: Any,
    where: dict[str, Any],
    expected: str,
) -> None:
    assert expected.lower() not in whole.lower()
    _set(sample, table, column, value, **where)
    assert expected.lower() in document(configuration, sample, tmp_path).lower()


def test_a_changed_published_figure_changes_text_and_claims(
    configuration: Configuration, sample: dict[str, list[Row]], whole: str, tmp_path: Path
) -> None:
    published = configuration.published
    figure = dataclasses.replace(published.measurements["M8"], tg_tokens_per_s=21.0)
    changed = dataclasses.replace(
        configuration,
        published=dataclasses.replace(published, measurements={**published.measurements, "M8": figure}),
    )
    text = document(changed, sample, tmp_path)
    assert "17 tokens/s" in whole
    assert "17 tokens/s" not in text
    assert "21 tokens/s" in text
    assert "−34.6 %" in whole
    assert "−34.6 %" not in text
    assert "−19.2 %" in text


def test_the_third_goes_with_the_other_baseline(configuration: Configuration) -> None:
    claim = next(line for line in claim_lines(configuration.published) if line.shown == "−33 %")
    computed = {against.baseline: (against.computed, against.follows) for against in claim.against}
    assert computed["M1, 25.34 tokens/s"] == ("−32.9 %", "yes")
    assert computed["M6, 26.0 tokens/s"][0] == "−34.6 %"
    assert computed["M6, 26.0 tokens/s"][1] != "yes"
    assert "does not follow from M8 against M6" in claim.remark


def test_every_attempt_has_its_command_and_every_finding_its_verdicts(configuration: Configuration, whole: str) -> None:
    for attempt in configuration.attempts:
        assert f"snakemake --cores 1 {attempt}" in whole
    for finding in configuration.findings.values():
        assert f"| {finding.title} |" in whole
    for figure in configuration.published.measurements.values():
        if figure.tg_tokens_per_s is not None:
            assert f"| {figure.id} |" in whole
            assert words.speed(figure.tg_tokens_per_s, figure.decimals) in whole


def test_later_knowledge_and_credit_are_told(configuration: Configuration, whole: str) -> None:
    for item in configuration.published.since_then.values():
        assert " ".join(item.statement.split())[:60] in whole
    assert configuration.published.sister_finding.status_date in whole
    assert "CC BY 4.0" in whole
    assert "neither a re-test nor measured here" in whole


def test_a_mini_result_never_judges_the_published_scope(whole: str) -> None:
    table = whole.split("| finding | attempt |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    said = {row[3].strip() for row in cells}
    assert said <= {"□ not testable here", "no verdict yet"}


def test_none_of_the_studys_sentences(whole: str) -> None:
    """No seven words in a row as in the study; its text is not ours, so the test keeps hashes of its runs of words."""
    theirs = set((ROOT / "tests" / "data" / "published_runs.txt").read_text(encoding="ascii").split())
    assert len(theirs) > 1000
    ours = {hashlib.sha256(run.encode()).hexdigest()[:12]: run for run in _runs(whole)}
    assert [ours[digest] for digest in sorted(theirs & set(ours))] == []


def _runs(text: str, length: int = 7) -> set[str]:
    """Runs of words; an address is nobody's words."""
    found = re.findall(r"[a-z]+", re.sub(r"\S*github\.com/\S*", "", text.lower()))
    return {" ".join(found[i : i + length]) for i in range(len(found) - length + 1)}


def test_blocks_are_set_apart(whole: str) -> None:
    lines = whole.splitlines()
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("#"):
            assert (before, after) == ("", ""), line
        if line.startswith("|") and not before.startswith("|"):
            assert before == "", line
            assert after.startswith("|---"), line
    assert "\n\n\n" not in whole
    assert whole.endswith("\n")
    assert not whole.endswith("\n\n")


def test_tables_have_as_many_cells_as_heads(whole: str) -> None:
    width = 0
    for line in whole.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert width in (0, cells) or not cells, line
        width = cells


def test_text_of_other_programs_is_no_markup(
    configuration: Configuration, sample: dict[str, list[Row]], tmp_path: Path
) -> None:
    _set(sample, "outcomes", "reason", "<b>*x*</b> | `y` [z](http://a)\n# head", converter="converter-b9002")
    text = document(configuration, sample, tmp_path)
    line = next(line for line in text.splitlines() if "converter-b9002 |" in line)
    assert "\\<b\\>\\*x\\*\\</b\\> \\| \\`y\\` \\[z\\](http://a) # head" in line
    assert not re.search(r"^# head", text, flags=re.MULTILINE)


def test_empty_tables_give_a_document_that_says_so(configuration: Configuration, tmp_path: Path) -> None:
    text = document(configuration, {}, tmp_path)
    assert "no verdict yet" in text
    assert "nothing yet" in text
    assert "No tables with measurements" in text
    assert "No file of others" in text


def test_publish_writes_once_scanned_and_counts(configuration: Configuration, tmp_path: Path) -> None:
    tables = write(tmp_path / "tables")
    figures = tmp_path / "docs" / "figures"
    figures.mkdir(parents=True)
    (figures / "speed.svg").write_text("<svg>one\ntwo</svg>\n", encoding="utf-8")
    out = tmp_path / "docs" / "document.md"
    story = tell(configuration, read_rows(tables))
    scanned = publish(story, table_files(tables), figures, out, ())
    assert scanned.files == 7
    text = out.read_text(encoding="utf-8")
    assert "7 files behind it" in text
    assert "(figures/speed.svg)" in text
    first = out.read_bytes()
    publish(story, table_files(tables), figures, out, ())
    assert out.read_bytes() == first


@pytest.mark.parametrize("place", ["reason", "figure"])
def test_a_secret_stops_the_writing(configuration: Configuration, tmp_path: Path, place: str) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"[:34]
    sample = rows()
    figures = tmp_path / "figures"
    figures.mkdir()
    if place == "reason":
        sample["verdicts"][0]["reason"] = f"refused with {token}"
    else:
        (figures / "speed.svg").write_text(f"<svg>{token}</svg>\n", encoding="utf-8")
    tables = write(tmp_path / "tables", sample)
    out = tmp_path / "document.md"
    out.write_text("the old one\n", encoding="utf-8")
    with pytest.raises(LeakError) as stopped:
        publish(tell(configuration, read_rows(tables)), table_files(tables), figures, out, ())
    assert token not in str(stopped.value)
    assert out.read_text(encoding="utf-8") == "the old one\n"


def test_a_secret_that_only_the_text_holds_stops_it_too(configuration: Configuration, tmp_path: Path) -> None:
    token = "hf_" + "ZyXwVuTsRqPoNmLkJiHgFeDcBa9876543210"[:34]
    with pytest.raises(LeakError):
        publishing.write_scanned(tmp_path / "x.md", [], (), lambda scanned: f"a {token}\n")
    assert list(tmp_path.iterdir()) == []


def test_leading_verdict_is_todays_build(configuration: Configuration, tmp_path: Path) -> None:
    story: Story = tell(configuration, complete(rows(), tmp_path))
    finding = next(f for f in story.findings if f.finding.id == "attempt_4_cannot_load")
    assert [line.build for line in finding.of_scope("mechanism")] == [11549]
    assert {line.build for line in finding.lines if line.scope == "mechanism"} == {9538, 11549}


def test_hosts_that_disagree_are_named(configuration: Configuration, tmp_path: Path) -> None:
    sample = rows()
    for name in ("verdicts", "hosts"):
        for row in [r for r in sample[name] if r["host"] == "sample-cpu-2core"]:
            sample[name].append(row | {"host": "other-gpu-6gb"})
    for row in sample["verdicts"]:
        if row["host"] == "other-gpu-6gb" and row["finding"] == "attempt_2_does_not_pay":
            row["verdict"] = "no_longer_holds" if row["scope"] == "mechanism" else row["verdict"]
    text = document(configuration, sample, tmp_path)
    assert "other-gpu-6gb: ✖ no longer holds; sample-cpu-2core: ● holds" in text


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(-13.08, 0, "−13 %"), (0.04, 1, "±0.0 %"), (-0.04, 1, "±0.0 %"), (47.0, 0, "+47 %"), (None, 0, "–")],
)
def test_percent(value: float | None, decimals: int, text: str) -> None:
    assert words.percent(value, decimals) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no GPU here", "No GPU here."),
        ("llama.cpp refuses", "llama.cpp refuses."),
        ("convert_hf_to_gguf.py exits", "convert_hf_to_gguf.py exits."),
        ("wrong: it does", "Wrong: it does."),
        ("  ", "–"),
    ],
)
def test_sentence(text: str, expected: str) -> None:
    assert words.sentence(text) == expected


def test_a_folder_without_tables_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="run the target `tables` first"):
        read_rows(tmp_path / "nowhere")

"""The report: one page that needs nothing, says everything, and runs nothing that came from a log."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from findings.config import Configuration, load_configuration
from findings.figures import FIGURES, Drawn, draw_all
from findings.report import TEMPLATES, load_images, prose, render_report, report
from findings.story import frames, read_rows, table_files, tell
from findings.view import Scanned
from sample_tables import rows, write

ROOT = Path(__file__).parents[2]
CAPTIONS = ROOT / "workflow" / "report"
SCANNED = Scanned(files=9, lines=100, allowed={})
VOID = {"meta", "link", "img", "input", "br", "hr", "col"}


class Page(HTMLParser):
    """Elements with their attributes; complains of tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}> near line {self.getpos()[0]}"
        self.open.pop()

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    data = frames(rows())
    drawn = Drawn(
        data["measurements"], data["effects"], data["verdicts"], data["precheck_scores"], data["hosts"], data["hosts"]
    )
    draw_all(drawn, folder, ["published", "precheck", "imported"])
    return folder


@pytest.fixture(scope="module")
def text(configuration: Configuration, figures: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    story = tell(configuration, read_rows(write(tmp_path_factory.mktemp("tables"))))
    return render_report(story, load_images(figures, CAPTIONS, list(FIGURES)), SCANNED)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_nothing_is_fetched(text: str, page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset", "formaction", "background"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:")), (tag, name, attributes[name][:60])
        assert tag not in ("iframe", "object", "embed", "form", "base", "audio", "video")
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_policy_allows_exactly_the_style_and_the_script_inside(text: str, page: Page) -> None:
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_inline_handlers_or_styles(page: Page) -> None:
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag


def test_text_of_a_log_runs_nothing(text: str) -> None:
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_verdicts_come_first_and_all_of_them(page: Page, text: str) -> None:
    tables = page.of("table")
    assert tables[0].get("id") == "verdicts-table"
    assert text.index('id="verdicts-table"') < text.index("<figure")
    bodies = [attributes for tag, attributes in page.elements if tag == "tr" and "data-verdict" in attributes]
    assert len(bodies) == len(rows()["verdicts"])
    assert {row["data-verdict"] for row in bodies} == {"holds", "no_longer_holds", "inconclusive", "not_testable"}


def test_heads_of_the_verdicts_are_buttons_with_a_sort_state(text: str) -> None:
    head = text.split('id="verdicts-table"', 1)[1].split("</thead>", 1)[0]
    heads = re.findall(r"<th\b[^>]*>.*?</th>", head, flags=re.DOTALL)
    assert len(heads) == 7
    assert all('aria-sort="none"' in cell and '<button type="button">' in cell for cell in heads)


def test_every_control_has_a_name(page: Page, text: str) -> None:
    for tag, attributes in page.elements:
        if tag in ("input", "select"):
            assert re.search(rf"<label[^>]*>(?:(?!</label>).)*id=\"{attributes['id']}\"", text, flags=re.DOTALL)
        if tag == "img":
            assert len(attributes["alt"]) > 20
        if attributes.get("role") == "region":
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
            assert attributes.get("tabindex") == "0"


def test_links_inside_the_page_lead_somewhere_and_ids_are_unique(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in page.of("a"):
        assert link["href"].removeprefix("#") in ids


def test_each_attempt_has_its_section_with_its_command(configuration: Configuration, text: str) -> None:
    for attempt in configuration.attempts.values():
        parts = text.split(f'<section class="attempt" id="{attempt.control_of or attempt.id}"')
        section = parts[1].split("</section>", 1)[0]
        if attempt.control_of:
            assert f"Positive control: {attempt.title}" in section
            assert f'id="{attempt.id}"' not in text
        for words in ("Hypothesis.", "What the study said", "What can be said today", "What was done", "Run it again"):
            assert words in section, attempt.id
        assert f"snakemake --cores 1 {attempt.id}" in section


def test_refusals_carry_the_log_and_the_prediction_stands_beside_the_outcome(text: str) -> None:
    section = text.split('id="attempt_4"', 1)[1].split("</section>", 1)[0]
    assert "Model Gemma4AssistantForCausalLM is not supported" in section
    assert re.search(r"<details><summary><strong>refused</strong>: load, llama\.cpp-b9538", section)
    assert "loading model\nunknown model architecture" in section
    assert "Pre-check said" in section
    assert "Pre-check beside the engine" in section


def test_not_engaged_is_no_speed(text: str) -> None:
    section = text.split('id="attempt_1"', 1)[1].split("</section>", 1)[0]
    assert "not engaged: no speed of speculation" in section


def test_figures_are_inside_with_captions(page: Page, text: str) -> None:
    assert len(page.of("img")) == 3
    for image in page.of("img"):
        kind, _, content = image["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(content).lstrip().startswith(b"<?xml")
        assert int(image["width"]) == 768
    assert text.count("<figcaption>") == 3
    assert "Evidence: published." in text


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_figure_has_a_caption_that_names_its_evidence(name: str) -> None:
    first = (CAPTIONS / f"{name}.rst").read_text(encoding="utf-8").split("\n\n")[0]
    assert re.search(r"Evidence: (measured|published|imported)", first)


def test_environment_comes_last(text: str) -> None:
    sections = re.findall(r'<section (?:class="attempt" )?id="([a-z0-9_]+)"', text)
    assert sections[0] == "verdicts"
    assert sections[-1] == "environment"


def test_the_same_tables_give_the_same_page(configuration: Configuration, figures: Path, tmp_path: Path) -> None:
    tables = write(tmp_path / "tables")
    for name in ("one", "two"):
        story = tell(configuration, read_rows(tables))
        report(story, table_files(tables), figures, CAPTIONS, list(FIGURES), tmp_path / name / "index.html", ())
    assert (tmp_path / "one" / "index.html").read_bytes() == (tmp_path / "two" / "index.html").read_bytes()


def test_empty_tables_give_a_page_that_says_so(configuration: Configuration) -> None:
    nothing = {name: [] for name in rows()}
    page = render_report(tell(configuration, nothing), {}, SCANNED)
    Page(page)
    assert "No verdicts yet" in page
    assert "no machine yet" in page


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "config" / "studies").glob("*.yaml")))
def test_every_study_of_the_repository_has_a_page(name: str) -> None:
    other = load_configuration(ROOT, {"study": name}, use_lock=False)
    page = render_report(tell(other, {table: [] for table in rows()}), {}, SCANNED)
    Page(page)
    assert other.study.title in page


def test_an_attempt_that_the_study_leaves_out_is_told(configuration: Configuration) -> None:
    kept = {key: plan for key, plan in configuration.study.attempts.items() if key != "attempt_6"}
    less = dataclasses.replace(configuration, study=dataclasses.replace(configuration.study, attempts=kept))
    page = render_report(tell(less, {table: [] for table in rows()}), {}, SCANNED)
    section = page.split('id="attempt_6"', 1)[1].split("</section>", 1)[0]
    assert "does not run this attempt" in section


@pytest.mark.parametrize(
    ("text", "html"),
    [("a `b` c", "a <code>b</code> c"), ("<i> & `<b>`", "&lt;i&gt; &amp; <code>&lt;b&gt;</code>"), ("x\n y", "x y")],
)
def test_prose(text: str, html: str) -> None:
    assert prose(text) == html

"""The report in a real browser: it sorts, filters, asks nobody, complains of nothing, and fits a telephone.

Chromium and its driver come from the system (Debian: chromium, chromium-driver); without them these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sample_tables import rows, write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver on PATH (Debian: apt-get install chromium chromium-driver): PAGE NOT CHECKED"
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
ROOT = Path(__file__).parents[2]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report, made by the command-line tools from sample tables, in a folder with a difficult name."""
    folder = tmp_path_factory.mktemp("ein Ordner mit 'Ü'")
    tables = write(folder / "tables")
    for tool, out in (("figures", folder / "figures"), ("report", folder / "index.html")):
        more = ["--figures", str(folder / "figures")] if tool == "report" else []
        subprocess.run(
            [sys.executable, f"scripts/{tool}.py", "--tables", str(tables), *more, "--out", str(out)],
            cwd=ROOT,
            check=True,
        )
    return (folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser with a profile of its own."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (envs/dev.in): PAGE NOT CHECKED")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Any, page: str) -> Any:
    """The browser, with empty logs and a wide window, that has just opened the report."""
    for kind in ("performance", "browser"):
        chromium.get_log(kind)
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    width(chromium, 1280)
    chromium.get(page)
    return chromium


def shown(browser: Any) -> list[Any]:
    return [row for row in browser.find_elements("css selector", "#verdicts-table tbody tr") if row.is_displayed()]


def column(browser: Any, index: int) -> list[str]:
    return [row.find_elements("css selector", "th, td")[index].text.split("\n")[0] for row in shown(browser)]


def head(browser: Any, name: str) -> Any:
    for cell in browser.find_elements("css selector", "#verdicts-table thead th"):
        if cell.text.startswith(name):
            return cell
    raise AssertionError(name)


def width(browser: Any, pixels: int) -> None:
    metrics = {"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": pixels < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_nothing_is_asked_for_and_nothing_complains(browser: Any, page: str) -> None:
    browser.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    browser.execute_script("scrollTo(0, document.body.scrollHeight)")
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent" and message["params"]["documentURL"] == page:
            asked.append(message["params"]["request"]["url"])
    assert asked, "the log of requests is empty, so it proves nothing"
    assert [url for url in asked if not url.startswith("data:") and url != page] == []
    assert browser.get_log("browser") == []


def test_every_figure_is_drawn(browser: Any) -> None:
    sizes = browser.execute_script(
        "return [...document.images].map((image) => [image.complete, image.naturalWidth, image.naturalHeight])"
    )
    assert len(sizes) == 7
    assert all(done and wide > 500 and high > 100 for done, wide, high in sizes)


def test_policy_stops_what_the_page_does_not_need(browser: Any) -> None:
    answer = browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "addEventListener('securitypolicyviolation', (event) => done(event.violatedDirective), {once: true});"
        "fetch('http://127.0.0.1:9/').catch(() => {}); setTimeout(() => done('nothing stopped it'), 5000);"
    )
    assert answer == "connect-src"


def test_sorting_goes_up_down_and_back(browser: Any) -> None:
    original = column(browser, 0)
    cell = head(browser, "Finding")
    button = cell.find_element("css selector", "button")
    states = []
    for _ in range(3):
        button.click()
        states.append((cell.get_attribute("aria-sort"), column(browser, 0)))
    assert [state for state, _ in states] == ["ascending", "descending", "none"]
    assert states[0][1] == sorted(original, key=str.lower)
    assert states[1][1] == sorted(original, key=str.lower, reverse=True)
    assert states[2][1] == original
    assert original != states[0][1]


def test_sorting_by_change_is_numeric_with_empty_cells_last(browser: Any) -> None:
    button = head(browser, "Change").find_element("css selector", "button")
    button.click()
    up = column(browser, 4)
    button.click()
    down = column(browser, 4)
    assert up[:2] == ["−45.1 %", "−4.9 %"]
    assert down[:2] == ["−4.9 %", "−45.1 %"]
    assert set(up[2:]) == set(down[2:]) == {"–"}


def test_sorting_another_column_resets_the_first(browser: Any) -> None:
    head(browser, "Finding").find_element("css selector", "button").click()
    head(browser, "Engine").find_element("css selector", "button").click()
    states = [
        cell.get_attribute("aria-sort") for cell in browser.find_elements("css selector", "#verdicts-table thead th")
    ]
    assert sorted(states) == ["ascending", *["none"] * 6]


def test_the_keyboard_sorts_too(browser: Any) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    head(browser, "Verdict").find_element("css selector", "button").send_keys(keys.ENTER)
    assert head(browser, "Verdict").get_attribute("aria-sort") == "ascending"
    words = [text.split(" ", 1)[1] for text in column(browser, 2)]
    assert words[0] == "holds"
    assert words[-1] == "not testable here"


def test_filters(browser: Any) -> None:
    everything = rows()["verdicts"]
    status = browser.find_element("id", "filter-shown")
    leading = len(shown(browser))
    assert leading < len(everything)
    browser.find_element("id", "filter-every").click()
    assert len(shown(browser)) == len(everything)
    assert status.text == f"{len(everything)} of {len(everything)} verdicts shown"
    browser.find_element("css selector", "#filter-verdict option[value='holds']").click()
    assert len(shown(browser)) == sum(row["verdict"] == "holds" for row in everything)
    browser.find_element("css selector", "#filter-verdict option[value='not_testable']").click()
    assert len(shown(browser)) == sum(row["verdict"] == "not_testable" for row in everything) > 0
    browser.find_element("css selector", "#filter-scope option[value='mechanism']").click()
    assert 0 < len(shown(browser)) < sum(row["verdict"] == "not_testable" for row in everything)
    browser.find_element("id", "filter-reset").click()
    assert len(shown(browser)) == leading
    browser.find_element("id", "filter-text").send_keys("VOCABULARY nothing-like-this")
    assert shown(browser) == []
    assert status.text.startswith("0 of ")
    browser.find_element("id", "filter-reset").click()
    browser.find_element("id", "filter-text").send_keys("Converter DRAFTER")
    assert set(column(browser, 0)) == {"The converter does not know the official drafter"}


def test_a_tile_filters_and_lets_go(browser: Any) -> None:
    before = len(shown(browser))
    tile = browser.find_element("css selector", ".tiles button.no_longer_holds[data-scope='mechanism']")
    number = int(tile.find_element("css selector", "strong").text)
    tile.click()
    assert tile.get_attribute("aria-pressed") == "true"
    assert len(shown(browser)) == number == 2
    tile.click()
    assert tile.get_attribute("aria-pressed") == "false"
    assert len(shown(browser)) == before


@pytest.mark.parametrize("pixels", [360, 768, 1280, 1920])
def test_nothing_is_wider_than_the_window(browser: Any, pixels: int) -> None:
    width(browser, pixels)
    browser.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    wide = browser.execute_script(
        "const inside = (node) => node.closest('.scroll, .plot, pre, .skip');"
        "return [...document.body.querySelectorAll('*')].filter((node) => !inside(node) &&"
        " node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
        ".map((node) => node.outerHTML.slice(0, 120));"
    )
    assert wide == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= pixels


def test_wide_tables_scroll_inside_their_box(browser: Any) -> None:
    width(browser, 360)
    inner, outer = browser.execute_script(
        "const box = document.querySelector('#verdicts-table').parentElement;return [box.scrollWidth, box.clientWidth];"
    )
    assert inner > outer
    assert outer < 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, scheme: str) -> None:
    """Contrast by WCAG 2 of every kind of text that has a colour of its own, at least 4.5."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    low = browser.execute_script(
        """
        const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const parse = (text) => text.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
        const ground = (node) => {
          for (; node; node = node.parentElement) {
            const colour = parse(getComputedStyle(node).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
          }
          return [255, 255, 255];
        };
        const found = [];
        for (const node of document.querySelectorAll(
          'p, a, h1, h2, h3, td, th, dt, dd, code, figcaption, summary, .tiles button, .controls button, .small,'
          + '.kicker, .verdict, .evidence, .none, .shown'
        )) {
          const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
          const ratio = (a + 0.05) / (b + 0.05);
          if (ratio < 4.5) found.push([node.tagName, node.className, ratio.toFixed(2)].join(' '));
        }
        return [...new Set(found)];
        """
    )
    assert low == []


def test_a_print_shows_what_is_folded(browser: Any) -> None:
    folded = "return document.querySelectorAll('details:not([open])').length"
    assert browser.execute_script(folded) > 0
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(folded) == 0
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(folded) > 0

"""The page in a headless Chromium: nothing to complain about, on a phone and a desk, by day and by night."""

import io
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from ptq_cli.evaluation.report_changes import compare_reports, layer_differences, trade_offs
from ptq_cli.report.html.page_view import render_comparison, render_page
from tests.browser import CONTRAST, PHONE, set_screen, start_browser
from tests.pages import Network
from tests.unit.evaluation.document.test_ladder import LADDER

DESK = 1280
LARGE_DESK = 1440
PAPER = 794  # Pixels across a sheet of A4
WIDTHS = {"phone": PHONE, "desk": DESK}
LAYERS = 24
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
Open = Callable[..., webdriver.Chrome]

pytestmark = pytest.mark.nightly  # By day ``test_page.py`` opens one.


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    yield from start_browser()


@pytest.fixture
def show(browser: webdriver.Chrome, tmp_path: Path) -> Open:
    """Open a page at a width, light or dark, or as it is printed."""

    def call(text=None, width=DESK, *, scheme="light", media="screen"):
        path = tmp_path / "report.html"
        path.write_text(text or render_page(Network(LAYERS).page_input()), encoding="utf-8")
        set_screen(browser, width, scheme=scheme, media=media)
        browser.get_log("browser")
        browser.get(path.as_uri())
        return browser

    return call


def rows(browser: webdriver.Chrome) -> list[WebElement]:
    return [
        row for row in browser.find_elements(By.CSS_SELECTOR, "#layer-table tbody tr") if row.is_displayed()
    ]


def names(browser: webdriver.Chrome) -> list[str]:
    return [row.find_element(By.TAG_NAME, "th").text for row in rows(browser)]


def column(browser: webdriver.Chrome, title: str) -> tuple[WebElement, int]:
    heads = browser.find_elements(By.CSS_SELECTOR, "#layer-table thead th")
    index = [head.text.replace("\n", " ") for head in heads].index(title)
    return heads[index], index


def cells(browser: webdriver.Chrome, index: int) -> list[str]:
    return [row.find_elements(By.XPATH, "./*")[index].text for row in rows(browser)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_it_looks_as_it_should(show: Open, tmp_path: Path, width: int, scheme: str) -> None:
    browser = show(width=width, scheme=scheme)
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width, (
        "nothing sticks out"
    )
    assert browser.execute_script(CONTRAST) == []
    assert browser.get_log("browser") == []
    shot = b64decode(
        browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
    )
    (tmp_path / f"{width}-{scheme}.png").write_bytes(shot)
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    assert picture.width == width
    corner = picture.getpixel((2, picture.height - 2))
    assert isinstance(corner, tuple)
    assert (sum(corner) > 600) is (scheme == "light")
    assert len(picture.getcolors(2**24) or []) > 50, "something is drawn"


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESK, "dark")])
def test_a_comparison_looks_as_it_should(show: Open, width: int, scheme: str) -> None:
    report = Network(LAYERS).page_input().report
    found = trade_offs([report, report], ("one", "other"))
    text = render_comparison(found, compare_reports(report, report), layer_differences(report, report))
    browser = show(text, width, scheme=scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.execute_script(CONTRAST) == []
    assert browser.get_log("browser") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "#models tbody tr")) == 2
    browser.find_element(By.CSS_SELECTOR, "#kind option[value=changed]").click()
    assert browser.find_element(By.ID, "count").text == f"0 of {LAYERS} layers"


@pytest.mark.parametrize("width", [DESK, LARGE_DESK])
def test_no_column_is_cut_on_a_desk(show: Open, width: int) -> None:
    is_cut = "(one) => one.checkVisibility() && one.scrollWidth > one.clientWidth"
    cut = f"return [...document.querySelectorAll('.scroll')].filter({is_cut}).map((one) => one.textContent)"
    assert show(width=width).execute_script(cut) == []


def test_a_table_that_is_too_wide_is_reached_by_keyboard(show: Open) -> None:
    reached = "return document.querySelector('#gates .scroll').tabIndex"
    assert show(width=700).execute_script(reached) == 0
    assert show().execute_script(reached) == -1, "there is nothing to scroll"


def test_each_value_stands_beside_its_name_on_a_phone(show: Open) -> None:
    found = Network(LAYERS).page_input()
    browser = show(render_page(replace(found, report=replace(found.report, ladder=LADDER))), PHONE)
    cells = "document.querySelectorAll('.stack :is(tbody th, td)')"
    bare = f"return [...{cells}].filter((one) => one.textContent && !one.children.length)"
    assert browser.execute_script(f"{bare}.map((one) => one.textContent)") == [], "no text without an element"
    name, value = "#tuning tbody tr:last-child th span", "#tuning tbody tr:last-child td span"
    assert browser.find_element(By.CSS_SELECTOR, name).text == "round"
    left = browser.find_element(By.CSS_SELECTOR, value).location["x"]
    assert left > PHONE / 2, "names to the left, values to the right"


def test_a_title_sorts_one_way_and_then_the_other(show: Open) -> None:
    browser = show()
    before = names(browser)
    head, index = column(browser, "SQNR acc.")
    head.find_element(By.TAG_NAME, "button").click()
    values = [float(text.removesuffix(" dB")) for text in cells(browser, index)]
    assert values == sorted(values) and head.get_attribute("aria-sort") == "ascending"
    head.find_element(By.TAG_NAME, "button").click()
    values = [float(text.removesuffix(" dB")) for text in cells(browser, index)]
    assert values == sorted(values, reverse=True) and head.get_attribute("aria-sort") == "descending"
    assert sorted(names(browser)) == sorted(before)
    others = browser.find_elements(By.CSS_SELECTOR, "#layer-table th[aria-sort=none]")
    assert len(others) == len(browser.find_elements(By.CSS_SELECTOR, "#layer-table th[aria-sort]")) - 1


def test_what_has_no_number_stays_last(show: Open) -> None:
    browser = show()
    head, index = column(browser, "Range")
    for _ in range(2):
        head.find_element(By.TAG_NAME, "button").click()
        texts = cells(browser, index)
        assert texts[-LAYERS // 4 :] == [""] * (LAYERS // 4) and all(texts[: -LAYERS // 4])


def test_the_search_and_the_choice_narrow_the_table(show: Open) -> None:
    browser = show()
    search, count = browser.find_element(By.ID, "search"), browser.find_element(By.ID, "count")
    assert count.text == f"{LAYERS} of {LAYERS} layers"
    search.send_keys("CONVOLUTION_7 clip")
    assert names(browser) == ["/encoder/stages.0/blocks.1/convolution_7/Conv"]
    assert count.text == f"1 of {LAYERS} layers"
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.DELETE)
    browser.find_element(By.CSS_SELECTOR, "#kind option[value=float]").click()
    assert count.text == f"{LAYERS // 4} of {LAYERS} layers"
    search.send_keys("no such layer")
    assert rows(browser) == []


def test_all_of_it_by_keyboard(show: Open) -> None:
    browser = show()
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.find_element(By.CSS_SELECTOR, "header strong").text == "ptq report"
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to the report" and skip.location["x"] >= 0, "seen when it has the focus"
    skip.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"
    head, index = column(browser, "Sensitivity")
    button = head.find_element(By.TAG_NAME, "button")
    browser.execute_script("arguments[0].focus({focusVisible: true})", button)
    assert button.value_of_css_property("outline-style") == "solid"
    button.send_keys(Keys.ENTER)
    values = [float(text.removesuffix(" dB")) for text in cells(browser, index)]
    assert values == sorted(values)
    summary = browser.find_element(By.CSS_SELECTOR, "#t2 summary")
    summary.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "#t2 .hist").is_displayed()


def test_a_layer_leads_to_the_histogram_of_its_output(show: Open) -> None:
    browser = show()
    link = browser.find_element(By.CSS_SELECTOR, "#l6 a")
    assert not browser.find_element(By.CSS_SELECTOR, "#t6 .hist").is_displayed()
    link.click()
    assert browser.find_element(By.CSS_SELECTOR, "#t6 .hist").is_displayed()
    box = browser.execute_script("return document.querySelector('#t6 .hist .bars').getBBox()")
    assert box["width"] > 200 and box["height"] > 50


def test_a_name_that_would_be_a_script_is_a_text(show: Open) -> None:
    found = Network(8, name=lambda index: f"{HOSTILE}{index}", text=HOSTILE).page_input()
    browser = show(render_page(found))  # an alert would fail every call from here on
    assert names(browser)[0] == f"{HOSTILE}0"
    assert browser.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    assert browser.get_log("browser") == []


def test_a_script_that_is_not_the_pages_own_does_not_run(show: Open) -> None:
    browser = show()
    browser.execute_script(
        "const added = document.createElement('script');"
        "added.text = 'window.ran = true'; document.body.append(added)"
    )
    assert browser.execute_script("return window.ran") is None
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


def test_printed_it_shows_the_whole_table_in_black_on_white(show: Open) -> None:
    browser = show(width=PAPER, scheme="dark", media="print")
    assert browser.execute_script("return document.documentElement.scrollWidth") == PAPER
    region = browser.find_element(By.CSS_SELECTOR, "#layers .scroll")
    assert region.value_of_css_property("max-height") == "none"
    assert region.value_of_css_property("overflow-x") == "visible"
    assert browser.find_element(By.TAG_NAME, "body").value_of_css_property("color") == "rgba(0, 0, 0, 1)"
    assert not browser.find_element(By.CSS_SELECTOR, ".bar").is_displayed()
    assert browser.execute_script(CONTRAST) == []

"""The site: every page is in its navigation, links hold, everyone can read it, and no other host is asked.

The tests of the built site are skipped without MkDocs, those in a browser without Chromium; ``.ci/run`` has
both.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urljoin

import pytest
import yaml
from markdown_it import MarkdownIt
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import CONTRAST, PHONE, set_screen, start_browser
from tools.site_pages import COMMENT, FILES_PAGE, SCHEMAS_PAGE, lead_links, outside_pages, with_decisions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DESK = 1440
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
# The file of each page that is written in Markdown.
SOURCES = {page: ROOT / source for source, page in outside_pages().items()} | {
    path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))
}
COUNTED = (
    *("blockquote", "em", "h1", "h2", "h3", "h4", "img", "li", "ol", "pre", "strong", "table", "tr", "ul"),
)
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
# Pages that have between them every kind of content: tables, lists, figures, and code in each language.
VISITED = ("", "commands/", "errors/", "files/", "guides/first-model/", "quantizers/")
# Returns the texts of cells that lie over the next column.
CUT_CELLS = """
return [...document.querySelectorAll("article :is(td, th)")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent);
"""
# Returns what scrolls, but not by keyboard.
OUT_OF_REACH = """
return [...document.querySelectorAll("article *")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === "auto")
  .filter((one) => one.tabIndex < 0).map((one) => one.outerHTML);
"""
TALLEST_ROW = (
    "return Math.max(0, ...[...document.querySelectorAll('article tr')].map((row) => row.clientHeight))"
)
MOST_TABS = 12


class Elements(HTMLParser):
    """Reads the elements of a page, and those of its article alone."""

    def __init__(self, text: str, *, whole: bool = False) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.article: list[str] = []
        self.inside = whole
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside |= tag == "article"
        self.all.append((tag, dict(attrs)))
        if self.inside:
            self.article.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"

    def counted(self) -> Counter[str]:
        return Counter(tag for tag in self.article if tag in COUNTED)


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if find_spec("mkdocs") is None:
        pytest.skip("no MkDocs here: pip install 'ptq-cli[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder / "site"), *arguments]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    result = build(folder)
    assert result.returncode == 0, result.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Elements]:
    """The pages of the site by their address, without the one for addresses that do not exist."""
    return {
        path.parent.relative_to(site).as_posix().removeprefix("."): Elements(path.read_text(encoding="utf-8"))
        for path in site.rglob("index.html")
    }


def address(page: str) -> str:
    return re.sub(r"(^|/)(README|index)\.md$|\.md$", "", page)


def listed(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from listed(below) if isinstance(below, list) else [below]


def test_every_page_is_in_the_navigation_once() -> None:
    found = Counter(listed(list(with_decisions(NAV))))
    assert found == Counter([*SOURCES, FILES_PAGE, SCHEMAS_PAGE]), "list the page under nav in mkdocs.yml"


def test_links_lead_to_pages_of_the_site() -> None:
    text = "[a](amax.md#methods) [b](../CHANGELOG.md) [c](../configs/presets/fp8.toml) [d](https://x.org)"
    wanted = "[a](amax.md#methods) [b](changelog.md) [c](files.md#presetsfp8toml) [d](https://x.org)"
    fence = "\n```text\n[b](../CHANGELOG.md)\n```\n"
    assert lead_links(text + fence, "docs/tune.md", "tune.md") == wanted + fence
    assert lead_links("[t](../tests/pages.py)", "docs/tune.md", "tune.md") == "t"
    assert lead_links("![r](../../docs/figures/step.svg)", "sample_models/a/README.md", "samples/a.md") == (
        "![r](../figures/step.svg)"
    )
    with pytest.raises(LookupError, match=r"setup\.py"):
        lead_links("[s](../setup.py)", "docs/tune.md", "tune.md")


def test_a_broken_link_and_a_page_in_no_navigation_fail(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# Home\n\n[a](gone.md) [b](#nowhere)\n", encoding="utf-8")
    (pages / "lost.md").write_text("# Lost\n", encoding="utf-8")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(pages), "nav": ["index.md"], "hooks": []}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    result = build(tmp_path, "--config-file", str(tmp_path / "mkdocs.yml"))
    assert result.returncode == 1
    assert result.stderr.count("WARNING") == 3
    assert all(said in result.stderr for said in ("'gone.md'", "'#nowhere'", "lost.md"))


def test_the_glossary_is_sorted() -> None:
    terms = re.findall(r"^## (.+)$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) > 30 and terms == sorted(terms, key=str.lower)


@pytest.mark.nightly
def test_every_page_reads_as_on_github(pages: dict[str, Elements]) -> None:
    """Lists, tables, code and headings that one reader of Markdown sees, the other sees, too."""
    reader = MarkdownIt("commonmark").enable("table")
    for page, path in SOURCES.items():
        text = COMMENT.sub("", path.read_text(encoding="utf-8"))
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)  # what an agent reads of a skill
        assert pages[address(page)].counted() == Elements(reader.render(text), whole=True).counted(), page


@pytest.mark.nightly
def test_every_page_is_laid_out_for_all_readers(pages: dict[str, Elements]) -> None:
    for page, elements in pages.items():
        levels = [int(tag[1]) for tag in elements.article if re.fullmatch(r"h[1-6]", tag)]
        assert levels.count(1) == 1 and levels[0] == 1, f"{page}: one title, which comes first"
        assert all(after <= before + 1 for before, after in pairwise(levels)), page
        assert all(found.get("alt") for tag, found in elements.all if tag == "img"), page
        dialogs = [found for _, found in elements.all if found.get("role") == "dialog"]
        assert dialogs and all(found.get("aria-label") for found in dialogs), page
        assert dict(elements.all)["html"]["lang"] == "en"


@pytest.mark.nightly
def test_every_page_is_reached_by_links_alone(pages: dict[str, Elements]) -> None:
    reached, waiting = {""}, [""]
    while waiting:
        page = waiting.pop()
        base = f"http://site/{page}/" if page else "http://site/"
        links = [found.get("href") or "" for tag, found in pages[page].all if tag == "a"]
        found = {
            urljoin(base, link).partition("#")[0].removeprefix("http://site/").strip("/") for link in links
        }
        new = found & pages.keys() - reached
        reached |= new
        waiting += new
    assert reached == pages.keys()


@pytest.mark.nightly
def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Elements]) -> None:
    for page, elements in pages.items():
        loaded = [found.get(LOADED[tag]) or "" for tag, found in elements.all if tag in LOADED]
        assert len(loaded) > 3 and not [link for link in loaded if re.match(r"(\w+:)?//", link)], page
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(\w+:)?//|@import", path.read_text(encoding="utf-8")), path.name


@pytest.fixture(scope="module")
def host(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    yield from start_browser()


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESK, "dark"), (DESK, "light")])
def test_it_can_be_read_on_a_phone_and_a_desk(
    browser: webdriver.Chrome, host: str, width: int, scheme: str
) -> None:
    set_screen(browser, width, scheme=scheme)
    browser.get_log("browser")
    for page in VISITED:
        browser.get(f"{host}/{page}")
        assert browser.execute_script("return document.documentElement.scrollWidth") == width, page
        assert browser.execute_script(CONTRAST) == [], page
        assert browser.execute_script(CUT_CELLS) == [], page
        assert browser.execute_script(OUT_OF_REACH) == [], page
        assert browser.execute_script(TALLEST_ROW) < 400, f"{page}: columns of text are wide enough to read"
        asked = browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert asked and all(name.startswith((host, "data:", "blob:")) for name in asked), page
    browser.execute_script("document.querySelector('h1').style.color = '#777'")
    assert len(browser.execute_script(CONTRAST)) == 1, "what is too weak is found"
    shown = browser.find_element(By.TAG_NAME, "body").get_attribute("data-md-color-scheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    assert browser.get_log("browser") == []


@pytest.mark.nightly
def test_the_search_is_reached_by_keyboard(browser: webdriver.Chrome, host: str) -> None:
    set_screen(browser, DESK)
    browser.get(f"{host}/tune/")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.text == "Skip to content" and skip.is_displayed()
    for _ in range(MOST_TABS):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        field = browser.switch_to.active_element
        if field.get_attribute("type") == "text":
            break
    assert field.accessible_name == "Search"
    field.send_keys("zero point")
    first = (By.CSS_SELECTOR, ".md-search-result__item a")
    WebDriverWait(browser, 10).until(lambda _: browser.find_elements(*first))
    links = [link.get_attribute("href") or "" for link in browser.find_elements(*first)]
    assert any(re.search(r"/glossary/(\?.*)?#zero-point$", link) for link in links)

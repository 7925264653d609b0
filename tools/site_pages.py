"""Give MkDocs the pages of the site that lie outside ``docs``, and lead links between all of them.

On a page of the site, a link to a file of the repository goes to the page that shows that file: README.md,
the changelog and the like are pages, configurations and files for CI are sections of one page, and schemas
have a page with what they are for. A link to a file that the site does not have is an error, unless
`ELSEWHERE` names it. ``mkdocs.yml`` names this file as its hook.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that lie outside ``docs``, and where the site has them.
PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "SKILL.md": "skill.md",
    "benchmarks/RESULTS.md": "results.md",
    "configs/README.md": "configs.md",
}
DECISIONS = {"Decisions": "decisions/"}  # The entry of the navigation that stands for all records
FILES_PAGE, SCHEMAS_PAGE = "files.md", "schemas.md"
# Sections of the page with files to copy, each with the files in it.
SHOWN_FILES = {
    "Presets": "configs/presets/*.toml",
    "Recipes": "configs/recipes/*.toml",
    "Targets": "configs/targets/*.toml",
    "For CI": "docs/ci/*",
    "A metric of your own": "sample_models/shapes_detector/detections.py",
    "The action": "action.yml",
    "Hooks": ".pre-commit-hooks.yaml",
    "Tested versions": "constraints.txt",
    "License": "LICENSE",
}
FOLDERS = {
    "docs/decisions": "decisions/README.md",
    "configs/presets": f"{FILES_PAGE}#presets",
    "configs/recipes": f"{FILES_PAGE}#recipes",
    "configs/targets": f"{FILES_PAGE}#targets",
    "docs/ci": f"{FILES_PAGE}#for-ci",
    "sample_models": "overview.md#what-it-costs",
}
ELSEWHERE = ("tests/",)  # What only those read who have the repository: links to it become plain text
# How much more a match in the glossary counts: who searches for a term wants to know what it means.
GLOSSARY_BOOST = 4
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".sh": "bash"}
FENCE = re.compile(r"^(```|~~~~).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(?<!<pre>)(?<!<pre><span></span>)(<code>)([^<]*)</code>")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
DIALOG = 'data-md-component="search" role="dialog"'
COMMENT = re.compile(r"^<!-- [^>]* -->\n", re.MULTILINE)


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """List every decision in the navigation, and give headings the anchors that they have on GitHub."""
    from pymdownx.slugs import slugify

    config.nav = list(with_decisions(config.nav or []))
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slugify(case="lower")}
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages that lie elsewhere, and those that show files."""
    from mkdocs.structure.files import File

    for source, name in (outside_pages() | pictures()).items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, FILES_PAGE, content=files_page()))
    files.append(File.generated(config, SCHEMAS_PAGE, content=schemas_page()))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Lead the links of a page to pages of the site, and leave out the comments that tests read."""
    del config, files
    name = page.file.src_uri
    if name == "glossary.md":
        page.meta["search"] = {"boost": GLOSSARY_BOOST}
    if name in (FILES_PAGE, SCHEMAS_PAGE):
        return markdown
    sources = {page: source for source, page in outside_pages().items()}
    return lead_links(COMMENT.sub("", markdown), sources.get(name, f"docs/{name}"), name)


def on_page_content(html: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Show code in prose and tables as GitHub does, and never break an option behind its hyphens."""
    del page, config, files
    return CODE.sub(_show_code, html)


def on_post_page(output: str, page: "Page", config: "MkDocsConfig") -> str:
    """Name the dialog of the search for those who listen, which the theme does not."""
    del page, config
    return output.replace(DIALOG, f'{DIALOG} aria-label="Search"')


def _show_code(match: re.Match[str]) -> str:
    r"""Return code that is not a block of its own.

    >>> CODE.sub(_show_code, "<code>--axis A\\|none</code>")
    '<code><span class="option">--axis</span> A|none</code>'
    """
    start, code = match.groups()
    return f"{start}{OPTION.sub(_keep_together, code.replace(chr(92) + '|', '|'))}</code>"


def _keep_together(match: re.Match[str]) -> str:
    return f'<span class="option">{match[0]}</span>'


def outside_pages() -> dict[str, str]:
    """Return the site's page of each page outside ``docs``, by its path in the repository."""
    samples = sorted(ROOT.glob("sample_models/*/README.md"))
    return PAGES | {path.relative_to(ROOT).as_posix(): f"samples/{path.parent.name}.md" for path in samples}


def pictures() -> dict[str, str]:
    """Return where the site has each picture of a sample, by its path in the repository."""
    found = sorted(ROOT.glob("sample_models/*/*.png"))
    return {path.relative_to(ROOT).as_posix(): f"samples/{path.parent.name}-{path.name}" for path in found}


def with_decisions(nav: Iterable[Any]) -> Iterator[Any]:
    """Return a navigation in which the entry of the decisions holds the page of each record."""
    for entry in nav:
        if entry == DECISIONS:
            records = sorted((DOCS / "decisions").glob("0*.md"))
            pages = [{record_title(path): f"decisions/{path.name}"} for path in records]
            yield {"Decisions": ["decisions/README.md", *pages]}
        elif isinstance(entry, dict):
            yield {
                title: list(with_decisions(below)) if isinstance(below, list) else below
                for title, below in entry.items()
            }
        else:
            yield entry


def record_title(path: Path) -> str:
    """Return the title of a decision, ``0001 The model is converted to ONNX first``."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").replace(": ", " ", 1)


def lead_links(markdown: str, source: str, name: str) -> str:
    """Return a page's text with links that hold on the site."""
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [_lead_links_of_prose(markdown[end : fence.start()], source, name), fence[0]]
        end = fence.end()
    return "".join([*pieces, _lead_links_of_prose(markdown[end:], source, name)])


def _lead_links_of_prose(text: str, source: str, name: str) -> str:
    def lead(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        path, _, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return match[0]
        wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))  # noqa: PTH118, PTH120
        if wanted.startswith(ELSEWHERE):
            return label
        page, _, section = page_of(wanted, source).partition("#")
        target = os.path.relpath(page, os.path.dirname(name) or ".")  # noqa: PTH120
        anchor = anchor or section
        return f"{mark}[{label}]({target}{'#' + anchor if anchor else ''})"

    return LINK.sub(lead, text)


def page_of(wanted: str, source: str = "") -> str:
    """Return where the site shows a file or folder of the repository: a page, perhaps with an anchor.

    >>> page_of("docs/amax.md"), page_of("CHANGELOG.md"), page_of("configs/presets/fp8.toml")
    ('amax.md', 'changelog.md', 'files.md#presetsfp8toml')
    """
    if wanted in FOLDERS:
        return FOLDERS[wanted]
    if wanted in (outside := outside_pages() | pictures()):
        return outside[wanted]
    if any(wanted in shown for shown in shown_files().values()):
        return f"{FILES_PAGE}#{re.sub(r'[^a-z0-9_-]', '', shown_title(wanted).lower())}"
    if wanted.startswith("docs/") and (ROOT / wanted).is_file():
        return wanted.removeprefix("docs/")
    raise LookupError(f"{source}: the site has no page of {wanted}; see tools/site_pages.py")


def shown_files() -> dict[str, list[str]]:
    """Return the files to copy, by the section in which they are shown."""
    return {
        section: [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern)) if path.is_file()]
        for section, pattern in SHOWN_FILES.items()
    }


def shown_title(name: str) -> str:
    """Return the title of a file to copy, which is short enough for a table of contents."""
    return name.removeprefix("configs/").removeprefix("docs/")


def files_page() -> str:
    """Return the page that shows the files to copy."""
    lines = [
        "# Files to copy",
        "",
        "What an installation or the repository holds for you to copy and change.",
        "",
    ]
    for section, names in shown_files().items():
        lines += [f"## {section}", ""]
        for name in names:
            path = ROOT / name
            title = shown_title(name)
            language = LANGUAGES.get(path.suffix, "text")
            content = path.read_text(encoding="utf-8").rstrip("\n")
            lines += [f"### `{title}`", "", f"~~~~{language}", content, "~~~~", ""]
    return "\n".join(lines)


def schemas_page() -> str:
    """Return the page that lists the JSON schemas, each with what it describes."""
    lines = ["# Schemas", "", "JSON schemas of the files and results that ptq writes, and of the recipe.", ""]
    lines += ["| schema | what it describes |", "| --- | --- |"]
    for path in sorted(DOCS.rglob("*.schema.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        title, description = schema["title"], schema.get("description", "")
        name = path.relative_to(DOCS).as_posix()
        lines.append(f"| [`{path.name}`]({name}) | {title}. {description} |")
    lines += ["", "What is promised of them is in [What is promised](stability.md).", ""]
    return "\n".join(lines)

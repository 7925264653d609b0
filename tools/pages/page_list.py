"""The pages of the project that say how it is used: what their blocks of code say runs in the tests.

Records of decisions and the changelog are not among them: they say what was measured when they were written.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/guides", "configs", "sample_models/*", "benchmarks")
# Pages that `make test` runs; it checks blocks and options of the others, which `make test-nightly` runs.
BY_DAY = {
    "README.md",
    "SKILL.md",
    "docs/amax.md",
    "docs/guides/publish.md",
    "docs/guides/ocr.md",
    "docs/guides/speed.md",
    "docs/recovery.md",
    "docs/tensorrt.md",
}
# Programs that pages use and that not every machine has; their pages are skipped without them.
PROGRAMS = {"docs/guides/ci.md": "openssl", "docs/json.md": "jq"}


def page_names() -> list[str]:
    """Return the pages by their path below the repository's top."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))]
    return sorted({path.relative_to(ROOT).as_posix() for path in found} - {"CHANGELOG.md"})

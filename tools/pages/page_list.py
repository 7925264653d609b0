"""The pages of the project that say how it is used: what their blocks of code say runs in the tests.

Records of decisions and the changelog are not among them: they say what was measured when they were written.
"""

from pathlib import Path

from tools.pages.sample_folders import sample_names

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/guides", "configs", "sample_models/*", "benchmarks")
NIGHTLY = {
    "docs/commands.md",
    "docs/dynamic.md",
    "docs/folders.md",
    "docs/guides/accuracy.md",
    "docs/guides/choosing.md",
    "docs/guides/ci.md",
    "docs/guides/dataloader.md",
    "docs/guides/language-model.md",
    "docs/guides/many-machines.md",
    "docs/guides/sentence-encoder.md",
    "docs/index.md",
    "docs/json.md",
    "docs/latency.md",
    "docs/metrics.md",
    "docs/report.md",
    "docs/text.md",
    "docs/weight_only.md",
    *(f"sample_models/{name}/README.md" for name in sample_names()),
}
"""Pages that take long: `make test-nightly` runs them; `make test` checks their blocks and options."""
PROGRAMS = {"docs/json.md": "jq"}
"""Programs that pages use and that not every machine has; their pages are skipped without them."""


def page_names() -> list[str]:
    """Return the pages by their path below the repository's top."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))]
    return sorted({path.relative_to(ROOT).as_posix() for path in found} - {"CHANGELOG.md"})

"""Whether the packages that write the documentation are of the pinned versions: others write it otherwise."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
WRITERS = ("click", "matplotlib", "numpy", "rich")


def is_pinned(name: str) -> bool:
    """Whether the installed version of a package is the pinned one."""
    try:
        return f"{name}=={version(name)}" in CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    except PackageNotFoundError:
        return False


with_pinned_writers = pytest.mark.skipif(
    not all(map(is_pinned, WRITERS)), reason="the documentation is written with the pinned versions"
)

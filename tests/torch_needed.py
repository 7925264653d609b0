"""Modules that cannot be imported without torch: they import it when they are imported, or one that does.

An environment without torch (`tools/environments.py`) leaves them out and runs all others. A test that
comes to need torch while it runs is skipped there. `tests/house/test_torch_needed.py` holds what may need it.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "ptq_cli", "tests", "tools")
TORCH = {"torch", "torchmetrics"}
HAS_TORCH = find_spec("torch") is not None
# What a module imports at once: in functions imports are indented, as those for types alone are.
IMPORT = re.compile(r"^(?:import|from) ([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)

STRING = re.compile(r'"""[\s\S]*?"""')  # What may hold a program of its own


def lacks_torch(error: BaseException) -> bool:
    """Whether a test ended because torch is not installed."""
    return not HAS_TORCH and isinstance(error, ModuleNotFoundError) and error.name in TORCH


def modules_that_need_torch() -> frozenset[Path]:
    """The modules of the project, by what they import, directly or through one another."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    imports = {path: set(_imported(path.read_text(encoding="utf-8"))) for path in paths}
    needed, found = set(TORCH), set[Path]()
    while new := {path for path, names in imports.items() if names & needed} - found:
        found |= new
        needed |= {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in new}
    return frozenset(found)


def _imported(text: str) -> Iterator[str]:
    """Names of modules that a module imports, with names that may be modules of a package."""
    for module, names in IMPORT.findall(STRING.sub("", text)):
        yield from (module, module.split(".")[0])
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))

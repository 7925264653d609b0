"""``docs/errors.md``: every error code, from the classes' docstrings and ``errors.toml``."""

import inspect
import tomllib
from pathlib import Path

from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError

HELP = Path(__file__).parent / "errors.toml"
INTRODUCTION = """\
# Errors

If an input cannot be used, a command prints one line with a code, one with a hint, and ends with status 2. In
Python the error is a subclass of `ptq_cli.PtqError` with `code`, `message` and `hint`, of
`ptq_cli.core.errors`. Status 1 with `bug in ptq` is an error in ptq itself: report it with the traceback that
`--debug` shows.
"""


def error_page() -> str:
    """Return the page."""
    kinds = error_classes()
    texts = tomllib.loads(HELP.read_text(encoding="utf-8"))
    if set(texts) != set(kinds):
        raise ValueError(f"{HELP.name} and the classes differ: {sorted(set(texts) ^ set(kinds))}")
    sections = [_section(kind, texts[kind_code]) for kind_code, kind in kinds.items()]
    return "\n".join([INTRODUCTION, *sections])


def _section(kind: type[PtqError], text: dict[str, str]) -> str:
    said = f"{_summary(kind)} {text.get('cause', '').strip()}".strip()
    parts = [f"## {kind.code}", f"`{kind.__name__}`: {said}", f"**Remedy.** {text['remedy'].strip()}"]
    return "\n\n".join(parts) + "\n"


def error_classes() -> dict[str, type[PtqError]]:
    """Return the error classes by code, in the order of ``errors.toml``."""
    kinds: dict[str, type[PtqError]] = {}
    for kind in vars(errors).values():
        if not (isinstance(kind, type) and issubclass(kind, PtqError)) or kind is PtqError:
            continue
        if kinds.get(kind.code, kind) is not kind:
            raise ValueError(f"{kind.code} is the code of two classes")
        kinds[kind.code] = kind
    order = list(tomllib.loads(HELP.read_text(encoding="utf-8")))
    return dict(
        sorted(kinds.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    )


def _summary(kind: type[PtqError]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("``", "`")

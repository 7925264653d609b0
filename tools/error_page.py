"""``docs/errors.md``: every error code, from the classes' docstrings and ``errors.toml``."""

import inspect
import tomllib
from pathlib import Path

from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError
from tools.tables import table

HELP = Path(__file__).parent / "errors.toml"
INTRODUCTION = """\
# Errors

If the input is wrong, a command ends with exit status 2 and prints two lines on stderr. The first has the
code and says what is wrong: what was found and what was expected. The second is a hint. The codes are
stable. In Python the same error is a subclass of `ptq_cli.PtqError` with `code`, `message` and `hint`.
`--debug` also shows the traceback.

There are two other exit statuses. Exit status 3 means that a gate failed. Exit status 1 with `bug in ptq`
means that the error is in ptq itself: run the command again with `--debug`, and report what it prints.
"""


def error_page() -> str:
    """Return the page.

    Raises:
        ValueError: a code is described twice, or ``errors.toml`` lacks one or has one too many.
    """
    kinds = error_classes()
    texts = tomllib.loads(HELP.read_text(encoding="utf-8"))
    if set(texts) != set(kinds):
        raise ValueError(f"{HELP.name} and the classes differ: {sorted(set(texts) ^ set(kinds))}")
    rows = [(f"[{kind_code}](#{kind_code.lower()})", _summary(kind)) for kind_code, kind in kinds.items()]
    sections = [_section(kind, texts[kind_code]) for kind_code, kind in kinds.items()]
    return "\n".join([INTRODUCTION, table(["code", "what"], rows), "", *sections])


def _section(kind: type[PtqError], text: dict[str, str]) -> str:
    parts = [
        f"## {kind.code}",
        _summary(kind),
        f"**Cause.** {text['cause'].strip()}",
        f"**Remedy.** {text['remedy'].strip()}",
        f"In Python: `ptq_cli.core.errors.{kind.__name__}`.",
    ]
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

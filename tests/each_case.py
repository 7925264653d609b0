"""A table's cases in one test: all of them run, and the failure names each one that failed.

``pytest.mark.parametrize`` makes a test of each case, with fixtures and a report of its own. That is worth
the time where a case takes long or is set up anew; cheap checks of the rows of a table are one test.
"""

import inspect
import reprlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.torch_needed import lacks_torch

Test = Callable[..., None]
ParameterSet = type(pytest.param())


def each_case(names: str, cases: Iterable[Any], ids: Any = None) -> Callable[[Test], Test]:
    """Run a test with the values of each case, all in one test; the arguments are those of ``parametrize``.

    A case gets a folder ``tmp_path`` and a ``monkeypatch`` of its own. Other fixtures are shared by all. The
    test is skipped if all its cases are.
    """
    keys = [name.strip() for name in names.split(",") if name.strip()]
    rows = [_row(case, len(keys)) for case in cases]
    said = _names(rows, ids if ids is None or callable(ids) else list(ids))
    assert rows, "there are no cases"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            skipped: list[BaseException] = []
            for number, (row, name) in enumerate(zip(rows, said, strict=True)):
                try:
                    with ExitStack() as stack:
                        own = _own(fixtures, number, stack)
                        test(*args, **own, **dict(zip(keys, row.values, strict=True)))
                except pytest.skip.Exception as error:
                    skipped.append(error)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is raised below
                    if lacks_torch(error):
                        skipped.append(error)
                        continue
                    error.add_note(f"case {name}")
                    failed[f"[{number}] {name}"] = error
            if failed:
                message = f"{len(failed)} of {len(rows)} cases: {'; '.join(failed)}"
                raise BaseExceptionGroup(message, list(failed.values()))
            if len(skipped) == len(rows):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [value for name, value in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def table(text: str) -> list[tuple[str, ...]]:
    """Read a table of texts: a row on each line, its cells apart by ``|``; ``~`` is an empty cell."""
    lines = (line.split(" | ") for line in text.strip().splitlines())
    return [tuple(cell.strip().replace("~", "") for cell in line) for line in lines]


def _row(case: Any, count: int) -> Any:
    if isinstance(case, ParameterSet):
        return case
    return pytest.param(case) if count == 1 else pytest.param(*case)


def _names(rows: Sequence[Any], ids: Any) -> list[str]:
    if isinstance(ids, list):
        assert len(ids) == len(rows), "each case has one id"
        return [str(name) for name in ids]
    write = ids if callable(ids) else reprlib.repr
    return [row.id or ", ".join(str(write(value)) for value in row.values) for row in rows]


def _own(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = Path(own["tmp_path"]) / str(number)
        own["tmp_path"].mkdir()
    if "monkeypatch" in own:
        own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
    return own

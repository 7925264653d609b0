"""Dataclasses of many fields take them by name, so that no call swaps two neighbors."""

import ast
from collections.abc import Iterator
from pathlib import Path

import ptq_cli

PACKAGE = Path(ptq_cli.__file__).parent
MOST_POSITIONAL = 4


def test_dataclasses_of_many_fields_are_keyword_only():
    classes = {name: item for path in sorted(PACKAGE.rglob("*.py")) for name, item in dataclasses_in(path)}

    positional = [
        name
        for name, (decorator, fields) in classes.items()
        if fields > MOST_POSITIONAL and "kw_only=True" not in decorator
    ]

    assert len(classes) > 200
    assert positional == []


def dataclasses_in(path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield each dataclass with its decorator and how many fields its ``__init__`` takes by position."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in map(ast.unparse, node.decorator_list):
            if decorator.split("(")[0].split(".")[-1] == "dataclass":
                fields = sum(is_taken(statement) for statement in node.body)
                yield f"{path.relative_to(PACKAGE)}: {node.name}", (decorator, fields)


def is_taken(statement: ast.stmt) -> bool:
    """Tell whether a statement in a dataclass's body is a field that ``__init__`` takes by position."""
    if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
        return False
    value = "" if statement.value is None else ast.unparse(statement.value)
    return "init=False" not in value and "kw_only=True" not in value

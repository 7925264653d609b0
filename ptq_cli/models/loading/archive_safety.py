"""A .pt2 archive is looked through before ``torch.export.load`` may read it.

``torch.export.load`` unpickles what the archive tells it to (``weights_only=False``), loads compiled code
from it, and evaluates shape expressions with sympy, as Python. A file from outside could run any code that
way, so an archive with any of these is refused unless the user trusts it. Of expressions only what torch
itself writes is let through: nested calls of known sympy functions on numbers and symbols.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ptq_cli.core.errors import ModelFormatError, PickleError

IDENTIFIER = re.compile(r"^[A-Za-z]\w*$")
LENGTH_LIMIT = 10_000
CALLS = (ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant)
OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop)
SYMPY = {"Abs", "Add", "And", "Eq", "Equality", "Float", "Ge", "GreaterThan", "Gt", "Integer", "Le"}
SYMPY |= {"LessThan", "Lt", "Max", "Min", "Mod", "Mul", "Ne", "Not", "Or", "Pow", "Rational", "Symbol"}
SYMPY |= {"StrictGreaterThan", "StrictLessThan", "Unequality", "ceiling", "floor", "sqrt"}
TORCH = {"CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Identity"}
TORCH |= {"IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "LShift", "ModularIndexing", "PowByNatural"}
TORCH |= {
    "PythonMod",
    "RShift",
    "RoundDecimal",
    "RoundToInt",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Where",
}
CALLABLE = SYMPY | TORCH


def is_arithmetic(expression: str) -> bool:
    """Tell whether evaluating the expression can do nothing but arithmetic.

    Edge case: Attributes, subscripts, lambdas, names with an underscore in front, calls of anything that is
        not known, and strings that are not identifiers make it false.

    Example:
        >>> is_arithmetic("Mul(Integer(2), Symbol('s0', positive=True, integer=True))")
        True
        >>> is_arithmetic("__import__('os').system('x')"), is_arithmetic("open('x')")
        (False, False)
    """
    if len(expression) > LENGTH_LIMIT:
        return False
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_allowed(node) for node in ast.walk(tree))


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CALLABLE
    if isinstance(node, ast.Name):
        return bool(IDENTIFIER.match(node.id))
    if isinstance(node, ast.Constant):
        plain = isinstance(node.value, (bool, int, float))
        return plain or (isinstance(node.value, str) and bool(IDENTIFIER.match(node.value)))
    return isinstance(node, CALLS + OPERATIONS)


CONFIG_MEMBER = re.compile(r"^data/(weights|constants)/.*config\.json$")
PICKLE_MEMBER = re.compile(r"^data/(weights/[^/]*\.pt|constants/[^/]*\.pt|sample_inputs/.*)$")


def require_safe_archive(path: Path) -> None:
    """Raise unless loading the .pt2 archive can run no code of the archive's own."""
    try:
        with zipfile.ZipFile(path) as archive:
            reason = next(_dangers(archive), None)
    except Exception as error:  # damaged JSON may hold a list where a table belongs, or nothing at all
        raise ModelFormatError(f"'{path.name}' is damaged: {error}", hint="export it again") from error
    if reason:
        raise PickleError(
            f"'{path.name}' {reason}, and loading it can run any code",
            hint="export it again with torch.export.save, or, if you trust the file, add --set "
            "model.trust_pickle=true",
        )


def _dangers(archive: zipfile.ZipFile) -> Iterator[str]:
    names = archive.namelist()
    # PyTorch minds no case when it looks a member up: what is checked here must be what is loaded then.
    if len({name.lower() for name in names}) != len(names):
        yield "holds two members with the same name"
    for member in names:
        inner = member.partition("/")[2].lower()
        if member.lower() == "serialized_exported_program.json":
            yield "has a form from before PyTorch 2.8, which is loaded by unpickling"
        elif inner.startswith("data/aotinductor/"):
            yield "holds compiled code"
        elif PICKLE_MEMBER.match(inner) and not _is_plain_pickle(archive.read(member)):
            yield f"holds a pickled object ({inner})"
        elif CONFIG_MEMBER.match(inner):
            yield from _config_dangers(archive, member, json.loads(archive.read(member)))
        elif inner.startswith("models/") and inner.endswith(".json"):
            for expression in _expressions(json.loads(archive.read(member))):
                if not is_arithmetic(expression):
                    yield f"has a shape expression that is not arithmetic ({expression[:40]!r})"


def _config_dangers(archive: zipfile.ZipFile, member: str, config: Any) -> Iterator[str]:
    folder = member.rpartition("/")[0]
    for name, entry in dict(config["config"]).items():
        path_name = str(entry["path_name"])
        if path_name.startswith(("custom_obj", "opaque")) or (
            entry.get("use_pickle") and not _is_plain_pickle(archive.read(f"{folder}/{path_name}"))
        ):
            yield f"holds a pickled object ({name})"


def _is_plain_pickle(content: bytes) -> bool:
    if not content:
        return True
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not plain tensors
        return False
    return True


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "expr_str" and isinstance(item, str):
                yield item
            else:
                yield from _expressions(item)
    elif isinstance(value, list):
        for item in value:
            yield from _expressions(item)

"""A .pt2 archive is looked through before ``torch.export.load`` may read it.

``torch.export.load`` unpickles what the archive tells it to (``weights_only=False``), loads compiled code
from it, and evaluates symbolic expressions with sympy. A file from outside could run any code that way,
so an archive with any of these is refused unless the user trusts it.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ptq_cli.core.errors import ModelFormatError, PickleError
from ptq_cli.models.loading.pytorch.safe_expression import is_arithmetic

CONFIG_MEMBER = re.compile(r"^data/(weights|constants)/.*config\.json$")
PICKLE_MEMBER = re.compile(r"^data/(weights/[^/]*\.pt|constants/[^/]*\.pt|sample_inputs/.*)$")


def require_safe_archive(path: Path) -> None:
    """Raise unless loading the .pt2 archive can run no code of the archive's own.

    Raises:
        ModelFormatError: the archive is damaged, or of a form older than PyTorch 2.8.
        PickleError: it holds compiled code, pickled objects, or an expression that is not arithmetic.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            reason = next(_dangers(archive), None)
    except Exception as error:  # damaged JSON may hold a list where a table belongs, or nothing at all
        raise ModelFormatError(f"'{path.name}' is damaged: {error}", hint="export it again") from error
    if reason:
        raise PickleError(
            f"'{path.name}' {reason}, and loading it can run any code",
            hint="export it again with torch.export.save, or, if you trust the file, add --trust-pickle",
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

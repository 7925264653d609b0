"""``file.py:callable`` and ``package.module:callable``: code that runs because the user named it."""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ptq_cli.core.errors import EntryPointError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.read_files import sha256_text


def load_entry_point(text: str, folder: Path, what: str) -> Callable[..., Any]:
    """Import what ``text`` names and return it.

    Args:
        text: ``file.py:callable``, relative to ``folder``, or ``package.module:callable``.
        folder: what a relative path is relative to; modules in it can be imported while the file is loaded.
        what: the setting's name, which begins each message, such as ``"--arch"``.

    Raises:
        EntryPointError: the text has no colon, the import failed, or the name is missing or not callable.

    Example:
        >>> load_entry_point("math:sqrt", Path("."), "--arch")(9.0)
        3.0
    """
    location, colon, name = text.rpartition(":")
    if not colon or not location or not name:
        raise EntryPointError(
            f"{what} '{text}' is not of the form file.py:callable or package.module:callable",
            hint=f"for example: {what} model.py:build",
        )
    module = _load_module(location, folder, what)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise EntryPointError(
            f"{what} '{text}': {location} has no '{name}'{did_you_mean(name, known)}",
            hint=f"it defines: {', '.join(sorted(known)[:8]) or 'no callables'}",
        )
    value = getattr(module, name)
    if not callable(value):
        raise EntryPointError(
            f"{what} '{text}' is a {type(value).__name__}, expected a callable",
            hint="name a function or a class",
        )
    return value  # type: ignore[no-any-return]


def _load_module(location: str, folder: Path, what: str) -> ModuleType:
    path = (folder / location).resolve()
    is_file = location.endswith(".py")
    if is_file and not path.is_file():
        raise EntryPointError(f"{what}: the file '{folder / location}' does not exist", hint="check the path")
    search = str(path.parent if is_file else folder.resolve())
    sys.path.insert(0, search)
    try:
        return _import_file(path) if is_file else importlib.import_module(location)
    # A script without a main guard may call sys.exit, which would end ptq without a message.
    except (Exception, SystemExit) as error:
        raise EntryPointError(
            f"{what}: importing '{location}' failed: {type(error).__name__}: {error}",
            hint="run the file with python to see the whole traceback, or pass --debug",
        ) from error
    finally:
        # The imported code may have rebuilt sys.path itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(search)


def _import_file(path: Path) -> ModuleType:
    # The name carries the path's hash, so that two files called model.py do not shadow each other.
    name = f"_ptq_entry_{path.stem}_{sha256_text(str(path))[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_entry_point(text: str) -> bool:
    """Tell whether ``text`` has the form of an entry point rather than of a path.

    Example:
        >>> is_entry_point("model.py:build"), is_entry_point("package.module:build")
        (True, True)
        >>> is_entry_point("folder/calib.npz")
        False
    """
    location, colon, name = text.rpartition(":")
    return bool(colon) and name.isidentifier() and (location.endswith(".py") or "/" not in location)


def resolve_entry_point(text: str, folder: Path) -> str:
    """Return ``text`` with a file's path made absolute against ``folder``.

    Example:
        >>> resolve_entry_point("../model.py:build", Path("/a/b"))
        '/a/model.py:build'
    """
    location, _, name = text.rpartition(":")
    if not location.endswith(".py"):
        return text
    return f"{os.path.normpath(folder.absolute() / location)}:{name}"

"""``file.py:callable`` and ``package.module:callable``: code that the user named or trusts."""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ptq_cli.core.errors import EntryPointError, PtqError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.read_files import sha256_text
from ptq_cli.core.trust import code_key, is_sample, require_trust

# What Python code passed as an object, by the name that recipes give it: nothing is imported.
PASSED_OBJECT = re.compile(r"ptq_cli\.api\.passed_objects:[0-9A-Za-z]*_[0-9a-f]{16}(_[0-9]+)?")


def load_entry_point(
    text: str, folder: Path, what: str, arguments: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Import what ``file.py:callable`` or ``package.module:callable`` names and return it, if it is trusted.

    A relative path is relative to ``folder``; modules beside the file can be imported while it is loaded.
    ``what`` is the setting's name, which begins each message; a recipe calls it with ``arguments``.
    """
    location, colon, name = text.rpartition(":")
    if not colon or not location or not name:
        raise EntryPointError(
            f"{what} '{text}' is not of the form file.py:callable or package.module:callable",
            hint=f"for example: {what} model.py:build",
        )
    module = _load_module(location, name, folder, what, arguments)
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


def _load_module(
    location: str, name: str, folder: Path, what: str, arguments: Mapping[str, Any] | None
) -> ModuleType:
    try:
        if location.endswith(".py"):
            return _load_file((folder / location).resolve(), name, f"{folder / location}", what, arguments)
        return _load_installed(location, name, folder, arguments)
    except PtqError:
        raise
    # A script without a main guard may call sys.exit, which would end ptq without a message.
    except (Exception, SystemExit) as error:
        raise EntryPointError(
            f"{what}: importing '{location}' failed: {type(error).__name__}: {error}",
            hint="run the file with python to see the whole traceback, or pass --debug",
        ) from error


def _load_file(
    path: Path, name: str, shown: str, what: str, arguments: Mapping[str, Any] | None
) -> ModuleType:
    if not path.is_file():
        raise EntryPointError(f"{what}: the file '{shown}' does not exist", hint="check the path")
    source, code = path.read_bytes(), f"{path}:{name}"
    digest = _source_digest(source)
    if is_sample(code, digest):
        return _run_source(path, source)
    require_trust(code_key(code, arguments), digest, code)
    with _search_path(str(path.parent)):
        return _run_source(path, source)


def _load_installed(
    location: str, name: str, folder: Path, arguments: Mapping[str, Any] | None
) -> ModuleType:
    key = code_key(f"{location}:{name}", arguments)
    if PASSED_OBJECT.fullmatch(f"{location}:{name}"):
        return importlib.import_module(location)
    # A folder that is somebody else's could hold a module that an installed package looks for in vain.
    search = str(folder.resolve())
    is_installed = _is_installed(location.partition(".")[0], search)
    file = _find(location, sys.path if is_installed else [search, *sys.path])
    source = file.read_bytes() if file is not None else b""
    digest = _source_digest(source) if file is not None else ""
    # What is trusted of one folder is not trusted of another that has a module of the same name.
    require_trust(f"{key} in {file}", digest, f"{location}:{name}", granted_by=key)
    if is_installed:
        return importlib.import_module(location)
    with _search_path(search):
        package = location.rpartition(".")[0]
        if file is None:
            return importlib.import_module(location)
        if package:
            importlib.import_module(package)
        return _run_source(file, source, location)


def _is_installed(package: str, folder: str) -> bool:
    """Whether a package is found without a folder, or was; not if it lies in that folder."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without one, such as __main__
        return True
    if spec is None:
        return False
    places = spec.submodule_search_locations or [spec.origin or ""]
    return all(os.path.dirname(place) != folder for place in places)  # noqa: PTH120 - "" for a built-in one


def _find(location: str, path: Sequence[str]) -> Path | None:
    """The source file of a module, whose packages are not imported; None if there is none."""
    names = location.split(".")
    where: Sequence[str] | None = path
    for depth, _ in enumerate(names, 1):
        found = PathFinder.find_spec(".".join(names[:depth]), where)
        if found is None:
            return None
        where = found.submodule_search_locations
        if where is None and depth < len(names):
            return None
    is_source = found is not None and found.origin is not None and found.origin.endswith(".py")
    return Path(os.path.realpath(str(found.origin))) if found is not None and is_source else None


def _source_digest(source: bytes) -> str:
    """The SHA-256 of code, whose lines may end as on any system."""
    return hashlib.sha256(source.replace(b"\r\n", b"\n")).hexdigest()


@contextlib.contextmanager
def _search_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        # The imported code may have rebuilt sys.path itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _run_source(path: Path, source: bytes, module: str = "") -> ModuleType:
    # The name carries the path's hash, so that two files called model.py do not shadow each other.
    name = module or f"_ptq_entry_{path.stem}_{sha256_text(str(path))[:12]}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(f"{path} is not a Python file")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    try:
        # The text that is trusted, and not what a __pycache__ beside it says that it was compiled to.
        exec(loader.source_to_code(source, str(path)), made.__dict__)  # noqa: S102
    except BaseException:
        del sys.modules[name]
        raise
    return made


def is_entry_point(text: str) -> bool:
    """Whether ``text`` has the form of an entry point rather than of a path.

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

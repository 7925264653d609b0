"""Code that the user named (``file.py:callable``, ``package:callable``), and plug-ins of packages.

A plug-in is looked for when a name is used that may be one, and its package is imported when the plug-in
itself is used: ``ptq --help`` does neither.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ptq_cli.core.errors import EntryPointError, PluginError, PtqError, first_line
from ptq_cli.core.read_files import sha256_text
from ptq_cli.core.trust import code_key, is_sample, require_trust
from ptq_cli.core.words import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# What Python code passed as an object, by the name that recipes give it: nothing is imported.
PASSED_OBJECT = re.compile(r"ptq_cli\.api\.(?:passed_objects|requests):[0-9A-Za-z]*_[0-9a-f]{16}(_[0-9]+)?")


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


TARGETS, METRICS, AMAX_METHODS = "ptq.targets", "ptq.metrics", "ptq.amax_methods"
# Kind of a group's plug-ins, in words.
_KINDS = {TARGETS: "target", METRICS: "metric", AMAX_METHODS: "amax method"}


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One entry point of another package.

    Attributes:
        group: the group that it was found in, such as ``"ptq.metrics"``.
        name: what users call it.
        value: the object that it names, as ``package.module:object``.
        package: the package that it comes with.
        version: of this package.
    """

    group: str
    name: str
    value: str
    package: str
    version: str

    @property
    def kind(self) -> str:
        """What it is, in words.

        Example:
            >>> Plugin(group=AMAX_METHODS, name="half", value="a:b", package="a", version="1").kind
            'amax method'
        """
        return _KINDS[self.group]

    def failed(self, reason: str, *, hint: str = "") -> PluginError:
        """The error that names the plug-in and its package."""
        usual = f"report it to the authors of {self.package}, or uninstall it: pip uninstall {self.package}"
        return PluginError(
            f"the {self.kind} '{self.name}' of the package {self.package} {self.version} {reason}",
            hint=hint or usual,
        )

    def load(self) -> Any:
        """Import the package, and return the object that the entry point names."""
        try:
            from importlib.metadata import EntryPoint

            return EntryPoint(name=self.name, value=self.value, group=self.group).load()
        # A module may also end the process, which would end ptq without a message.
        except (Exception, SystemExit) as error:
            reason = f"cannot be loaded from {self.value}: {type(error).__name__}: {first_line(error)}"
            hint = f"update {self.package}, or uninstall it: pip uninstall {self.package}"
            raise self.failed(reason, hint=hint) from error


def find_plugin(group: str, name: str, own: Collection[str]) -> Plugin | None:
    """The plug-in with this name, or None; ``own`` are the names that ptq itself has in this place.

    Example:
        >>> find_plugin(TARGETS, "ort-cpu", ["ort-cpu"]) is None
        True
    """
    found = [plugin for plugin in plugins(group) if plugin.name == name]
    if not found:
        return None
    first = found[0]
    if name in own:
        raise first.failed(
            f"has a name that ptq itself uses for the {first.kind} '{name}'",
            hint=f"uninstall the package: pip uninstall {first.package}; its authors can choose another name",
        )
    if len(found) > 1:
        raise first.failed(
            f"has the same name as the one of the package {found[1].package} {found[1].version}",
            hint=f"uninstall one of them: pip uninstall {found[1].package}",
        )
    return first


def plugins(group: str) -> tuple[Plugin, ...]:
    """The plug-ins of a group, in the order of their names; none of them is imported.

    Example:
        >>> plugins("ptq.nothing")
        ()
    """
    return _found(group, tuple(sys.path))


def plugin_names(group: str) -> tuple[str, ...]:
    """The names of the plug-ins of a group, in their order.

    Example:
        >>> plugin_names("ptq.nothing")
        ()
    """
    return tuple(plugin.name for plugin in plugins(group))


def plugin_lines() -> list[str]:
    """A line for each package that has plug-ins: its version, and what it adds.

    Example:
        >>> any("ptq-cli" in line for line in plugin_lines())
        False
    """
    packages: dict[str, list[str]] = {}
    for plugin in (plugin for group in _KINDS for plugin in plugins(group)):
        packages.setdefault(f"{plugin.package} {plugin.version}", []).append(f"{plugin.kind} {plugin.name}")
    return [f"plug-ins of {package}: {', '.join(names)}" for package, names in packages.items()]


def _order(point: "EntryPoint") -> tuple[str, str]:
    return point.name, point.dist.name if point.dist is not None else ""


@lru_cache(maxsize=64)
def _found(group: str, _path: tuple[str, ...]) -> tuple[Plugin, ...]:
    from importlib.metadata import entry_points  # --help needs none of it

    # The metadata of all packages are read, which takes milliseconds; the path alone decides what is found.
    return tuple(
        Plugin(
            group=group,
            name=point.name,
            value=point.value,
            package=point.dist.name if point.dist is not None else "of an unknown name",
            version=point.dist.version if point.dist is not None else "",
        )
        for point in sorted(entry_points(group=group), key=_order)
    )

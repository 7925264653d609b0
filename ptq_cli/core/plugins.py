"""Plug-ins: what other installed packages add to ptq under a name, found by their entry points.

A plug-in is looked for when a name is used that may be one, and its package is imported when the plug-in
itself is used: ``ptq --help`` does neither.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ptq_cli.core.errors import PluginError, first_line

TARGETS, METRICS, AMAX_METHODS = "ptq.targets", "ptq.metrics", "ptq.amax_methods"
# Kind of a group's plug-ins, in words.
KINDS = {TARGETS: "target", METRICS: "metric", AMAX_METHODS: "amax method"}


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
        return KINDS[self.group]

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
    for plugin in (plugin for group in KINDS for plugin in plugins(group)):
        packages.setdefault(f"{plugin.package} {plugin.version}", []).append(f"{plugin.kind} {plugin.name}")
    return [f"plug-ins of {package}: {', '.join(names)}" for package, names in packages.items()]


def _order(point: EntryPoint) -> tuple[str, str]:
    return point.name, point.dist.name if point.dist is not None else ""


@lru_cache(maxsize=64)
def _found(group: str, _path: tuple[str, ...]) -> tuple[Plugin, ...]:
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

"""What a shell completes: names that ptq knows, keys of a recipe, or files.

Nothing here imports PyTorch, ONNX or ONNX Runtime.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
LoadNames = Callable[[], Iterable[str]]


def complete_names(load: LoadNames, *, or_files: bool = False) -> Complete:
    """Return a completion of names; with a mapping, its values describe them.

    Where no name begins with what was typed, ``or_files`` completes files: a shell cannot mix both.
    """

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        names = load()
        texts: Mapping[str, str] = names if isinstance(names, Mapping) else {}
        found = [CompletionItem(name, help=texts.get(name)) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")] * or_files

    return complete


def complete_files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete files and folders."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_folders(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete folders."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def complete_commands(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete the commands after ``ptq help``: those of ``ptq``, or of the command that was named."""
    root = context.find_root()
    group, inner = root.command, root
    for word in context.params.get("command") or ():
        found = group.get_command(inner, word) if isinstance(group, click.Group) else None
        if found is None:
            return []
        group, inner = found, click.Context(found, info_name=word, parent=inner)
    if not isinstance(group, click.Group):
        return []
    return [item for item in group.shell_complete(inner, incomplete) if not item.value.startswith("-")]


def collectors() -> list[str]:
    """Return what ``--method`` may be."""
    from ptq_cli.collectors.collector_registry import COLLECTORS

    return list(COLLECTORS)


def amax_methods() -> list[str]:
    """Return what ``--amax`` may be."""
    from ptq_cli.amax.method_registry import AUTO, method_names

    return [AUTO, *method_names()]


def metrics() -> list[str]:
    """Return the metrics that ``--metric`` may name."""
    from ptq_cli.core.plugins import METRICS, plugin_names
    from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS, PAIR_METRICS, REQUESTED_COMPARISONS

    return [*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS, *plugin_names(METRICS)]


def presets() -> tuple[str, ...]:
    """Return what ``--preset`` may be."""
    from ptq_cli.recipe.recipe_layers import preset_names

    return preset_names()


def documents() -> list[str]:
    """Return what ``ptq schema`` knows: commands with ``--json``, and files."""
    from ptq_cli.cli.document_registry import COMMANDS, FILES

    return [*COMMANDS, *FILES, "ptq.toml"]


def targets() -> tuple[str, ...]:
    """Return the targets that have a name."""
    from ptq_cli.plan.target.target_file import known_targets

    return known_targets()


def runtimes() -> dict[str, str]:
    """Return the runtimes, and what their makers call them."""
    from ptq_cli.plan.target.rules import RUNTIME_TITLES

    return RUNTIME_TITLES


def quantizers() -> dict[str, str]:
    """Return the quantizers of weights, and what each is."""
    from ptq_cli.recipe.quantizer_families import FAMILIES

    return {family.name: family.meaning for family in FAMILIES.values()}


def rungs() -> dict[str, str]:
    """Return what ``--recover`` may be, and what each does."""
    from ptq_cli.recipe.known_modes import ALL, AUTO, NONE, RUNGS
    from ptq_cli.recipe.recovery_rungs import BY_DEFAULT

    return {**RUNGS, ALL: "all of them", AUTO: ", ".join(BY_DEFAULT), NONE: "nothing"}


# After --set: first keys, and after "=" the values of those that have names for them.


def _named() -> dict[str, LoadNames]:
    """Return what names there are, by what a setting is declared to be the name of."""
    from ptq_cli.amax.method_registry import method_names
    from ptq_cli.calibdata.images.image_settings import CHANNELS, LAYOUTS

    return {
        "collector": collectors,
        "amax method": amax_methods,
        "amax method of weights": method_names,
        "target": targets,
        "metric": metrics,
        "image mode": lambda: CHANNELS,
        "layout": lambda: LAYOUTS,
    }


def key_values(key: str) -> tuple[str, ...]:
    """Return the names that a key of the recipe may have; none if it has others than names.

    Example:
        >>> key_values("text.tail"), key_values("text.pack"), key_values("amax.bins")
        (('drop', 'pad'), ('true', 'false'), ())
    """
    from ptq_cli.recipe.assignments import find_setting

    declared = find_setting(key)
    if declared is None:
        return ()
    if declared.type is bool:
        return "true", "false"
    load = _named().get(declared.names)
    return (*declared.choices, *(load() if load is not None else ()))


def complete_sections(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete the sections and keys that ``ptq recipe keys`` lists."""
    from click.shell_completion import CompletionItem

    from ptq_cli.recipe.assignments import list_keys

    names = [(item.key, item.meaning) for item in list_keys()]
    if "." not in incomplete:
        names = [(section, "") for section in dict.fromkeys(key.partition(".")[0] for key, _ in names)]
    return [CompletionItem(name, help=text or None) for name, text in names if name.startswith(incomplete)]


def complete_assignments(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete ``KEY=VALUE``: the key with its meaning, then the values that have names."""
    from click.shell_completion import CompletionItem

    from ptq_cli.recipe.assignments import ONCE, TABLES, list_keys

    key, equals, value = incomplete.partition("=")
    if equals:
        return [CompletionItem(f"{key}={name}") for name in key_values(key) if name.startswith(value)]
    once = getattr(context.command, "once", ())
    return [
        CompletionItem(f"{item.key}=", help=item.meaning)
        for item in list_keys()
        if item.key.startswith(key)
        and item.key.partition(".")[0] not in TABLES
        and (not item.key.startswith(f"{ONCE}.") or item.key.partition(".")[2] in once)
    ]

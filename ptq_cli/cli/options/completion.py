"""What a shell completes: known names, or files. Nothing here imports PyTorch, ONNX or ONNX Runtime."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
LoadNames = Callable[[], Iterable[str]]


def complete_names(load: LoadNames, *, or_files: bool = False) -> Complete:
    """Return a completion of names; with a mapping, its values describe them.

    Args:
        load: returns the names; it is called, and imports what it needs, only when a shell asks.
        or_files: complete files where no name begins with what was typed. A shell cannot mix both.
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


def amax_methods() -> list[str]:
    """Return what ``--amax`` may be."""
    from ptq_cli.amax.method_registry import AUTO
    from ptq_cli.amax.plugin_methods import method_names

    return [AUTO, *method_names()]


def weight_amax_methods() -> list[str]:
    """Return what ``--weight-amax`` may be."""
    from ptq_cli.amax.plugin_methods import method_names

    return list(method_names())


def collectors() -> list[str]:
    """Return what ``--method`` may be."""
    from ptq_cli.collectors.collector_registry import COLLECTORS

    return list(COLLECTORS)


def devices() -> list[str]:
    """Return what ``--device`` may be; which GPUs there are only PyTorch could tell."""
    return ["cpu", "cuda"]


def metrics() -> list[str]:
    """Return the metrics that ``--metric`` may name."""
    from ptq_cli.core.plugins import METRICS, plugin_names
    from ptq_cli.report.metrics.metric_registry import LABEL_METRICS, PAIR_METRICS, REQUESTED_COMPARISONS

    return [*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS, *plugin_names(METRICS)]


def operators() -> list[str]:
    """Return the operators that the rules of a target name."""
    from ptq_cli.plan.target.target_file import load_target, target_names

    return sorted({operator for name in target_names() for operator in load_target(name).op})


def presets() -> tuple[str, ...]:
    """Return what ``--preset`` may be."""
    from ptq_cli.recipe.recipe_layers import preset_names

    return preset_names()


def documents() -> list[str]:
    """Return what ``ptq schema`` knows: commands with ``--json``, and files."""
    from ptq_cli.cli.shown.documents.document_registry import COMMANDS, FILES

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


def activation_modes() -> dict[str, str]:
    """Return what ``--activation-mode`` may be, and what each does."""
    from ptq_cli.recipe.activation_modes import MODES

    return MODES


def activation_granularities() -> dict[str, str]:
    """Return what ``--activation-granularity`` may be, and what each does."""
    from ptq_cli.recipe.activation_modes import GRANULARITIES

    return GRANULARITIES


def activation_quantizers() -> dict[str, str]:
    """Return the quantizers of activations, and what each is."""
    from ptq_cli.recipe.quantizer_families import FAMILIES

    return {family.name: family.meaning for family in FAMILIES.values() if family.activations is not None}


def rungs() -> dict[str, str]:
    """Return what ``--recover`` may be, and what each does."""
    from ptq_cli.recipe.recovery_rungs import ALL, AUTO, BY_DEFAULT, NONE, RUNGS

    return {**RUNGS, ALL: "all of them", AUTO: ", ".join(BY_DEFAULT), NONE: "nothing"}


def granularities() -> tuple[str, ...]:
    """Return what ``--weight-granularity`` may be."""
    from ptq_cli.recipe.quantizer_settings import CHANNEL, TENSOR

    return CHANNEL, TENSOR


def alphas() -> tuple[str, ...]:
    """Return what ``--weight-alpha`` may be."""
    from ptq_cli.recipe.quantizer_settings import PLAIN, POWER_OF_TWO

    return POWER_OF_TWO, PLAIN


def weight_dtypes() -> tuple[str, ...]:
    """Return what ``--weight-dtype`` may be."""
    from ptq_cli.core.numbers.formats import FLOATS

    return tuple(FLOATS)


def activation_dtypes() -> tuple[str, ...]:
    """Return what ``--activation-dtype`` may be."""
    from ptq_cli.recipe.quantizer_settings import DTYPES

    return DTYPES


def image_modes() -> list[str]:
    """Return what ``--image-mode`` may be."""
    from ptq_cli.calibdata.images.checked_settings import CHANNELS

    return list(CHANNELS)


def layouts() -> tuple[str, ...]:
    """Return what ``--layout`` may be."""
    from ptq_cli.calibdata.images.checked_settings import LAYOUTS

    return LAYOUTS


def tails() -> list[str]:
    """Return what ``--tail`` may be."""
    return ["drop", "pad"]


def pairs() -> list[str]:
    """Return what ``--pairs`` may be."""
    return ["joined", "apart"]

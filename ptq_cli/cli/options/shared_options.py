"""Options that most commands share, and how all of them become settings; each option is defined once."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ptq_cli.cli.help_sections import GLOBAL, MODEL, OWN, RUNNING, option
from ptq_cli.cli.options.option_values import (
    parse_axes,
    parse_batch_axes,
    parse_overrides,
    parse_renames,
    parse_shapes,
    parse_values,
)
from ptq_cli.cli.terminal.output import keep_quiet
from ptq_cli.pipeline.run_directory import DEFAULT_RUN

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# What a shell completes: known names, or files. Nothing here imports PyTorch, ONNX or ONNX Runtime.


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
    from ptq_cli.amax.method_registry import AUTO, method_names

    return [AUTO, *method_names()]


def weight_amax_methods() -> list[str]:
    """Return what ``--weight-amax`` may be."""
    from ptq_cli.amax.method_registry import method_names

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
    from ptq_cli.cli.documents.document_registry import COMMANDS, FILES

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
    from ptq_cli.recipe.recovery_rungs import MODES

    return MODES


def activation_granularities() -> dict[str, str]:
    """Return what ``--activation-granularity`` may be, and what each does."""
    from ptq_cli.recipe.recovery_rungs import GRANULARITIES

    return GRANULARITIES


def activation_quantizers() -> dict[str, str]:
    """Return the quantizers of activations, and what each is."""
    from ptq_cli.recipe.quantizer_families import FAMILIES

    return {family.name: family.meaning for family in FAMILIES.values() if family.takes_activations}


def rungs() -> dict[str, str]:
    """Return what ``--recover`` may be, and what each does."""
    from ptq_cli.recipe.recovery_rungs import ALL, AUTO, BY_DEFAULT, NONE, RUNGS

    return {**RUNGS, ALL: "all of them", AUTO: ", ".join(BY_DEFAULT), NONE: "nothing"}


def granularities() -> tuple[str, ...]:
    """Return what ``--weight-granularity`` may be."""
    from ptq_cli.recipe.quantizer_families import CHANNEL, TENSOR

    return CHANNEL, TENSOR


def alphas() -> tuple[str, ...]:
    """Return what ``--weight-alpha`` may be."""
    from ptq_cli.recipe.quantizer_families import PLAIN, POWER_OF_TWO

    return POWER_OF_TWO, PLAIN


def weight_dtypes() -> tuple[str, ...]:
    """Return what ``--weight-dtype`` may be."""
    from ptq_cli.core.formats import FLOATS

    return tuple(FLOATS)


def activation_dtypes() -> tuple[str, ...]:
    """Return what ``--activation-dtype`` may be."""
    from ptq_cli.recipe.quantizer_families import DTYPES

    return DTYPES


def image_modes() -> list[str]:
    """Return what ``--image-mode`` may be."""
    from ptq_cli.calibdata.checked_settings import CHANNELS

    return list(CHANNELS)


def layouts() -> tuple[str, ...]:
    """Return what ``--layout`` may be."""
    from ptq_cli.calibdata.checked_settings import LAYOUTS

    return LAYOUTS


def tails() -> list[str]:
    """Return what ``--tail`` may be."""
    return ["drop", "pad"]


def pairs() -> list[str]:
    """Return what ``--pairs`` may be."""
    return ["joined", "apart"]


Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

# Whether it can be read is for the room that reads it to say, in its own words.
PATH = click.Path(readable=False, path_type=Path)

TARGET = option(
    MODEL,
    "--target",
    shell_complete=complete_names(targets, or_files=True),
    metavar="NAME|FILE.TOML",
    help="Target whose placement rules apply.  [default: ort-cpu]",
)
THREADS = option(
    RUNNING, "--threads", type=int, metavar="N", help="Number of threads; 0 for one per core.  [default: 0]"
)
ACCURACY_LEVEL = option(
    RUNNING,
    "--accuracy-level",
    type=int,
    metavar="N",
    help="Accuracy level at which weights in blocks are computed: 0 in float, 4 with activations of 8 bits. "
    "An option of the session, not stored in the file.  [default: ONNX Runtime's, 4]",
)
SERVE_BATCH = option(
    RUNNING,
    "--serve-batch",
    type=int,
    metavar="N",
    help="Samples per run where a latency is measured.  [default: 1]",
)
DEVICE = option(
    RUNNING,
    "--device",
    shell_complete=complete_names(devices),
    metavar="NAME",
    help="Device that runs the model: cpu, cuda or cuda:N.  [default: cpu]",
)
RUN = option(
    RUNNING,
    "--run",
    shell_complete=complete_folders,
    type=PATH,
    default=DEFAULT_RUN,
    show_default=True,
    metavar="DIR",
    help="Run directory.",
)
RECIPES = (
    option(RUNNING, "--recipe", type=PATH, metavar="FILE", help="Recipe file; overrides ./ptq.toml."),
    option(
        RUNNING,
        "--preset",
        shell_complete=complete_names(presets),
        metavar="NAME",
        help="Base settings.  [default: int8_ort_cpu]",
    ),
)
OUTPUT = option(
    OWN,
    "--output",
    "-o",
    type=PATH,
    metavar="FILE",
    help="Output file.  [default: RUN/model.int8.onnx, or RUN/model.w4.onnx for 4 bits]",
)
SUFFIX = option(
    OWN,
    "--suffix",
    metavar="NAME",
    help="What the names of a folder's quantized files end with: q4 for model_q4.onnx.  "
    "[default: by the form: quantized, int8, q4, …]",
)
PLOT = option(
    OWN,
    "--plot",
    type=PATH,
    metavar="FILE",
    help="Also draw it as a .png or .svg file; needs the extra ptq-cli[plot].",
)


def take(*options: Decorator[Any] | tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """Return a decorator that adds options, in the order in which ``--help`` shows them."""
    flat = [item for group in options for item in (group if isinstance(group, tuple) else (group,))]

    def decorate(command: Any) -> Any:
        for add in reversed(flat):
            command = add(command)
        return command

    return decorate


def settings_from(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as settings of the recipe.

    Raises:
        UsageError: a shape, a name, an axis or an override cannot be read.
        GateError: a limit cannot be read.
    """
    from ptq_cli.report.limits import (
        BUDGET_FLAG,
        MAX_DROP_FLAG,
        MAX_RATIO_FLAG,
        MAX_REGRESSION_FLAG,
        MIN_FLAG,
        parse_limits,
    )

    settings = {name: value for name, value in options.items() if value not in (None, ())}
    if "input" in settings:
        settings["input"] = parse_values(settings["input"])
    if "input_shape" in settings:
        settings["input_shape"] = parse_shapes(settings["input_shape"])
    if "rename" in settings:
        settings["rename"] = parse_renames(settings["rename"])
    if "batch_axis" in settings:
        settings["batch_axis"] = parse_batch_axes(settings["batch_axis"])
    if "activation_axis" in settings:
        settings["activation_axis"] = parse_axes(settings["activation_axis"])
    for name in ("include", "include_op", "exclude", "exclude_op", "text_column", "metric"):
        if name in settings:
            settings[name] = list(settings[name])
    if "override" in settings:
        settings["override"] = parse_overrides(settings["override"])
    if "minimum" in settings:
        settings["min"] = settings.pop("minimum")
    flags = {
        "max_drop": MAX_DROP_FLAG,
        "max_ratio": MAX_RATIO_FLAG,
        "max_regression": MAX_REGRESSION_FLAG,
        "min": MIN_FLAG,
        "budget": BUDGET_FLAG,
    }
    for name, flag in flags.items():
        if name in settings:
            settings[name] = parse_limits(settings[name], flag)
    return settings


# Options that every command takes; the ``ptq`` command itself imports no more than these.


JSON = option(GLOBAL, "--json", "as_json", is_flag=True, help="Print the result as JSON.")
DEBUG = option(
    GLOBAL, "--debug", is_flag=True, expose_value=False, help="Show the traceback if an error occurs."
)
QUIET = option(
    GLOBAL,
    "--quiet",
    "-q",
    is_flag=True,
    expose_value=False,
    callback=keep_quiet,
    help="Print only the result, warnings and errors; of a file that is written, only its path and the "
    "verdict.",
)
TALK = (QUIET, DEBUG)
GLOBALS = (JSON, *TALK)
"""What every command takes; a group of commands takes ``TALK`` alone."""

"""Options that most commands share, and how all of them become settings; each option is defined once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ptq_cli.cli.help.help_sections import MODEL, OWN, RUNNING, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.completion import complete_names
from ptq_cli.cli.options.option_values import (
    parse_axes,
    parse_batch_axes,
    parse_overrides,
    parse_renames,
    parse_shapes,
    parse_values,
)
from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

# Whether it can be read is for the room that reads it to say, in its own words.
PATH = click.Path(readable=False, path_type=Path)

TARGET = option(
    MODEL,
    "--target",
    shell_complete=complete_names(completion.targets, or_files=True),
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
    shell_complete=complete_names(completion.devices),
    metavar="NAME",
    help="Device that runs the model: cpu, cuda or cuda:N.  [default: cpu]",
)
RUN = option(
    RUNNING,
    "--run",
    shell_complete=completion.complete_folders,
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
        shell_complete=complete_names(completion.presets),
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
    from ptq_cli.report.gate.limits import (
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

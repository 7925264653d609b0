"""Each shared option, defined once; a command takes the groups it needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ptq_cli.cli.values import NumberList, parse_axes, parse_overrides, parse_shapes
from ptq_cli.pipeline.run.run_directory import DEFAULT_RUN

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

# Whether it can be read is for the room that reads it to say, in its own words.
PATH = click.Path(readable=False, path_type=Path)

MODEL_ARGUMENT = click.argument("model", required=False, type=PATH)
INPUT_SHAPE = click.option(
    "--input-shape",
    multiple=True,
    metavar="NAME=N,N,…",
    help="Shape of an input, where no data tells it.",
)
MODEL = (
    click.option("--arch", metavar="FILE.PY:NAME", help="Builds the module that a state dict belongs to."),
    click.option(
        "--trust-pickle", is_flag=True, default=None, help="Unpickle a whole module. It can run any code."
    ),
    INPUT_SHAPE,
)
IMAGE = (
    click.option(
        "--resize", type=NumberList(int), help="Height,width of images, or one number: shorter side."
    ),
    click.option("--crop", type=NumberList(int), help="Height,width cut from the centre of images."),
    click.option("--mean", type=NumberList(float), help="Subtracted from pixels, one number a channel."),
    click.option("--std", type=NumberList(float), help="Pixels are divided by it."),
    click.option("--scale", type=float, help="Factor on 0…255 pixels before mean and std.  [default: 1/255]"),
    click.option("--image-mode", metavar="MODE", help="RGB, BGR or L (grey).  [default: RGB]"),
    click.option("--layout", metavar="LAYOUT", help="NCHW or NHWC.  [default: NCHW]"),
)
CALIBRATION = (
    click.option(
        "--data", metavar="PATH", help="Calibration set: npz, npy, images, tar, parquet, FILE.PY:NAME."
    ),
    click.option("--method", metavar="NAME", help="What to keep: histogram or max.  [default: histogram]"),
    click.option("--samples", type=int, metavar="N", help="Use only the first N calibration samples."),
)
KEPT = (
    click.option(
        "--activation-axis",
        multiple=True,
        metavar="NAME=AXIS",
        help="Keep each channel's statistics too: NAME=1, '*=-1'; may be given again.",
    ),
    click.option(
        "--allow-nonfinite",
        is_flag=True,
        default=None,
        help="Count NaN and Inf, and take ranges from the finite values.",
    ),
)
CHECKPOINTS = (
    click.option(
        "--checkpoint-every", type=float, metavar="SECONDS", help="Keep what was counted.  [default: 30]"
    ),
    click.option("--restart", is_flag=True, help="Begin anew, not where an earlier one was ended."),
)
SHARD = click.option(
    "--shard", metavar="K/N", help="Run only the K-th of N shares of the batches; see ptq merge."
)
BATCH_SIZE = click.option("--batch-size", type=int, metavar="N", help="Samples a batch.  [default: 32]")
TARGET = click.option("--target", metavar="NAME|FILE.TOML", help="Whose rules decide.  [default: ort-cpu]")
THREADS = click.option("--threads", type=int, metavar="N", help="Threads; 0 for one a core.  [default: 0]")
DEVICE = click.option(
    "--device", metavar="NAME", help="Where to run and count: cpu, cuda or cuda:N.  [default: cpu]"
)
STREAMING = (
    click.option(
        "--prefetch",
        type=int,
        metavar="N",
        help="Batches that are decoded before they are needed.  [default: 1]",
    ),
    click.option(
        "--max-memory",
        metavar="SIZE",
        help="Peak of the host's memory, as 2GiB or 800MB: smaller pieces, more passes.",
    ),
)
AMAX = (
    click.option(
        "--amax", metavar="METHOD", help="What decides ranges: auto, max, percentile, entropy or mse."
    ),
    click.option("--percentile", type=float, metavar="P", help="Percent of the values that a range holds."),
    click.option("--weight-amax", metavar="METHOD", help="What decides ranges of weights.  [default: max]"),
    click.option("--amax-bins", type=int, metavar="N", help="Bins for entropy and mse.  [default: 2048]"),
    click.option(
        "--amax-start-bin",
        type=int,
        metavar="N",
        help="Bins of the smallest range tried.  [default: 128 for entropy, 1 for mse]",
    ),
    click.option("--amax-stride", type=int, metavar="N", help="Bins from range to range.  [default: 1]"),
)
QUANTIZERS = (
    click.option(
        "--weight-quantizer",
        metavar="NAME",
        help="scaled, fixed_point, dorefa, step or centers.  [default: scaled]",
    ),
    click.option("--weight-bits", type=int, metavar="N", help="Of a weight's integers."),
    click.option("--weight-alpha", metavar="NAME", help="Of fixed_point: auto_po2 or none."),
    click.option("--weight-integer", type=int, metavar="N", help="Of fixed_point: bits before the point."),
    click.option("--weight-step", type=float, metavar="X", help="Of step: the distance of two values."),
    click.option("--weight-centers", type=int, metavar="N", help="Of centers: how many."),
    click.option(
        "--weight-granularity", metavar="NAME", help="Of scaled and centers: by channel, or by tensor."
    ),
    click.option("--weight-block-size", type=int, metavar="N", help="Of scaled: values that share a scale."),
    click.option("--weight-axis", type=int, metavar="N", help="Of scaled: the axis of scales or blocks."),
    click.option("--weight-seed", type=int, metavar="N", help="Of centers: of its random numbers."),
    click.option("--weight-restarts", type=int, metavar="N", help="Of centers: tries of k-means."),
    click.option(
        "--activation-quantizer", metavar="NAME", help="scaled, fixed_point or step.  [default: scaled]"
    ),
    click.option("--activation-dtype", metavar="NAME", help="Of scaled: int8, uint8, int16 or uint16."),
    click.option(
        "--activation-symmetric/--no-activation-symmetric",
        default=None,
        help="Of scaled: zero points in the middle.  [default: the target's]",
    ),
    click.option(
        "--activation-integer", type=int, metavar="N", help="Of fixed_point: bits before the point."
    ),
    click.option("--activation-step", type=float, metavar="X", help="Of step: the distance of two values."),
)
OVERRIDES = (
    click.option("--include", multiple=True, metavar="PATTERN", help="Quantize only these layers."),
    click.option("--include-op", multiple=True, metavar="OP", help="Quantize only these operators."),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Keep these layers in float: 'head.*'."),
    click.option("--exclude-op", multiple=True, metavar="OP", help="Keep these operators in float: Gemm."),
    click.option(
        "--override",
        multiple=True,
        metavar="PATTERN:KEY=VALUE,…",
        help="Settings of some layers: 'head.*:weights.bits=4'; may be given again.",
    ),
)
GATES = (
    click.option(
        "--max-drop",
        multiple=True,
        metavar="METRIC=X",
        help="Exit 3 if the metric drops by more: top1=0.01, top1=1%.",
    ),
    click.option("--min", "minimum", multiple=True, metavar="METRIC=X", help="Exit 3 if it is below X."),
    click.option("--max-size", metavar="SIZE", help="Exit 3 if the int8 file is larger: 1MB, 900KiB."),
    click.option(
        "--max-latency-ratio", type=float, metavar="X", help="Exit 3 if int8 takes more than X times as long."
    ),
    click.option("--baseline", metavar="FILE", help="An earlier report.json, for --max-regression."),
    click.option(
        "--max-regression",
        multiple=True,
        metavar="METRIC=X",
        help="Exit 3 if worse than the baseline by more.",
    ),
    click.option(
        "--strict/--no-strict",
        default=None,
        help="Exit 3 if the samples cannot decide a limit.  [default: the value decides]",
    ),
)
METRIC = (
    click.option(
        "--metric",
        multiple=True,
        metavar="NAME",
        help="top1, f1, mse, torchmetrics.…:Class, FILE.PY:NAME; top1[OUTPUT]; may be given again.",
    ),
    click.option(
        "--with-pytorch/--no-with-pytorch",
        default=None,
        help="Evaluate the PyTorch model too.  [default: no]",
    ),
)
THUMBNAILS = click.option(
    "--thumbnails", is_flag=True, help="Show pictures that change their class in report.html."
)
RUN = click.option(
    "--run", type=PATH, default=DEFAULT_RUN, show_default=True, metavar="DIR", help="The run directory."
)
RECIPES = (
    click.option("--recipe", type=PATH, metavar="FILE", help="A recipe; ./ptq.toml lies beneath it."),
    click.option(
        "--preset", metavar="NAME", help="The settings beneath all others.  [default: int8_ort_cpu]"
    ),
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
WHAT_IS_COUNTED = (MODEL_ARGUMENT, *CALIBRATION, *KEPT)
HOW_IT_IS_COUNTED = (
    *CHECKPOINTS,
    *MODEL,
    *IMAGE,
    TARGET,
    DEVICE,
    THREADS,
    *STREAMING,
    RUN,
    *RECIPES,
    JSON,
)
"""With the group before, what every command that calibrates takes."""
DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


def take(*options: Decorator[Any] | tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """Return a decorator that adds options, in the order in which ``--help`` shows them."""
    flat = [item for option in options for item in (option if isinstance(option, tuple) else (option,))]

    def decorate(command: Any) -> Any:
        for option in reversed([*flat, DEBUG]):
            command = option(command)
        return command

    return decorate


def settings_from(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as settings of the recipe.

    Raises:
        UsageError: a shape, an axis or an override cannot be read.
        GateError: a limit cannot be read.
    """
    from ptq_cli.report.gate.limits import MAX_DROP_FLAG, MAX_REGRESSION_FLAG, MIN_FLAG, parse_limits

    settings = {name: value for name, value in options.items() if value not in (None, ())}
    if "input_shape" in settings:
        settings["input_shape"] = parse_shapes(settings["input_shape"])
    if "activation_axis" in settings:
        settings["activation_axis"] = parse_axes(settings["activation_axis"])
    for name in ("include", "include_op", "exclude", "exclude_op"):
        if name in settings:
            settings[name] = list(settings[name])
    if "override" in settings:
        settings["override"] = parse_overrides(settings["override"])
    if "metric" in settings:
        settings["metric"] = list(settings["metric"])
    if "max_drop" in settings:
        settings["max_drop"] = parse_limits(settings["max_drop"], MAX_DROP_FLAG)
    if "max_regression" in settings:
        settings["max_regression"] = parse_limits(settings["max_regression"], MAX_REGRESSION_FLAG)
    if "minimum" in settings:
        settings["min"] = parse_limits(settings.pop("minimum"), MIN_FLAG)
    return settings

"""Options about the model, its data, how it is quantized, its metrics and their limits.

A flag has the type, the choices and the sentence of its key in a recipe, unless a command line needs other
words than a recipe.
"""

from collections.abc import Callable
from typing import Any

import click

from ptq_cli.core.errors import UsageError
from ptq_cli.core.words import require_known
from ptq_cli.recipe.declaration import ALL, AUTO, NONE, RUNGS
from ptq_cli.recipe.schema import SETTINGS
from ptq_cli.terminal.options.help_sections import (
    DATA,
    EVALUATION,
    LAYERS,
    MODEL,
    RANGES_HEADING,
    RUNNING,
    WEIGHTS,
    argument,
    option,
)
from ptq_cli.terminal.options.shared_options import PATH

METRIC = option(
    EVALUATION,
    "--metric",
    multiple=True,
    metavar="NAME",
    help="Metric to compute: top1, f1, mse, …, torchmetrics.…:CLASS or FILE.PY:NAME; "
    "top1[OUTPUT] for one output. Can be repeated.",
)
GENERATE = option(
    EVALUATION,
    "--generate",
    type=int,
    metavar="N",
    help="Continue each prompt greedily by N tokens with both models, and compare the tokens.",
)
PORTABLE = option(
    EVALUATION,
    "--require-portable/--no-require-portable",
    default=None,
    help="Exit with status 3 if a layer can saturate on x86 processors without VNNI.  [default: no]",
)
LIMITS = (
    option(
        EVALUATION,
        "--max-drop",
        multiple=True,
        metavar="METRIC=X",
        help="Exit with status 3 if the metric drops by more than X: top1=0.01, top1=1%. Can be repeated.",
    ),
    option(
        EVALUATION,
        "--min",
        "minimum",
        multiple=True,
        metavar="METRIC=X",
        help="Exit with status 3 if the metric is below X. Can be repeated.",
    ),
)
MAX_SIZE = option(
    EVALUATION,
    "--max-size",
    metavar="SIZE",
    help="Exit with status 3 if the quantized model's file is larger: 1MB, 900KiB.",
)
LATENCY_LIMIT = option(
    EVALUATION,
    "--max-latency-ratio",
    type=float,
    metavar="X",
    help="Exit with status 3 if the quantized model takes more than X times as long as the float model.",
)
REGRESSION = (
    option(
        EVALUATION,
        "--baseline",
        metavar="FILE",
        help="Earlier report.json that --max-regression compares with.",
    ),
    option(
        EVALUATION,
        "--max-regression",
        multiple=True,
        metavar="METRIC=X",
        help="Exit with status 3 if the metric is worse than the baseline's by more than X. Can be repeated.",
    ),
)
STRICT = option(
    EVALUATION,
    "--strict/--no-strict",
    default=None,
    help="Exit with status 3 if there are too few samples to decide a limit.  "
    "[default: the measured value decides]",
)


WAYS = (AUTO, NONE, ALL)


class RecoveryWay(click.ParamType[list[str]]):
    """``auto``, ``none`` or ``all``; a single rung belongs into the recipe."""

    name = "WAY"

    def convert(self, value: Any, *_: object) -> list[str]:
        """Return the rungs of a way, as the recipe has them."""
        if isinstance(value, list):
            return value
        names = [part.strip() for part in str(value).split(",")]
        if any(names) and all(name in (*RUNGS, AUTO) for name in names) and names != [AUTO]:
            raise UsageError(
                f"--recover takes {AUTO}, {NONE} or {ALL}, and not the name of a rung, '{value}'",
                hint=f"use --set recovery.rungs={','.join(names)}",
            )
        require_known("value of --recover", value, WAYS)
        return [value]


def setting(section: str, key: str, *, default: object = None, **attributes: Any) -> Callable[[Any], Any]:
    """Return the option of a key of the recipe; ``default`` is told in place of the key's own."""
    declared = SETTINGS[key]
    default = declared.default if default is None else default
    text = declared.sentence().replace("`", "")
    told = f"{text}  [default: {default}]" if default and default is not True else text
    if declared.type is bool:
        attributes |= {"is_flag": True, "default": None}
    elif declared.choices:
        attributes |= {"type": click.Choice(tuple(declared.choices))}
    elif declared.type is int:
        attributes |= {"type": int, "metavar": "N"}
    return option(section, f"--{declared.name.replace('_', '-')}", **{"help": told, **attributes})


def target_option(default: str = "ort-cpu") -> Callable[[Any], Any]:
    """Return ``--target``, with what it is where it is not given."""
    return setting(MODEL, "quantization.target", default=default, metavar="NAME|FILE.TOML")


def data_option(help: str, *names: str, section: str = DATA) -> Callable[[Any], Any]:
    """Return ``--data``, or another option that names data."""
    return option(section, *(names or ("--data",)), metavar="PATH", help=help)


MODEL_ARGUMENT = argument("model", required=False, type=PATH)
ARCH = setting(MODEL, "model.arch", metavar="FILE.PY:NAME")
TARGET = target_option()
CALIBRATION = (
    data_option("Calibration data: .npz, .npy, a folder of images, tar, Parquet, text, or FILE.PY:NAME."),
    setting(DATA, "calibration.samples"),
)
METHOD = option(
    RANGES_HEADING,
    "--method",
    metavar="NAME",
    help="Statistics to collect: histogram or max.  [default: histogram]",
)
AMAX = option(
    RANGES_HEADING,
    "--amax",
    metavar="METHOD",
    help="Method for activation ranges: auto, max, percentile, entropy or mse.  [default: auto]",
)
RECOVER = option(
    WEIGHTS,
    "--recover",
    type=RecoveryWay(),
    metavar="WAY",
    help="Recover accuracy with the calibration data: auto, until the worst output is good enough; all, "
    "whatever it takes; or none.  [default: auto]",
)
WEIGHT_BITS = setting(WEIGHTS, "weights.bits")
EXCLUDE = option(
    LAYERS,
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Keep the matching layers in float: 'head.*'. Can be repeated.",
)
PREFER = setting(LAYERS, "export.prefer")
QUANTIZATION = (WEIGHT_BITS, RECOVER, EXCLUDE, PREFER)
EVALUATION_DATA = (
    data_option("Evaluation data, with labels if a metric needs them.", "--eval-data", section=EVALUATION),
    option(
        EVALUATION,
        "--eval-samples",
        type=int,
        metavar="N",
        help="Number of evaluation samples.  [default: all]",
    ),
)
ENGINE = setting(RUNNING, "runtime.engine")
RESTART = option(
    RUNNING, "--restart", is_flag=True, help="Start over instead of continuing from a checkpoint."
)
SHARD = option(
    RUNNING,
    "--shard",
    metavar="K/N",
    help="Run only part K of N of the batches; ptq merge combines the parts.",
)

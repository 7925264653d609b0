"""Options about the model, the data that run through it, and how it is quantized.

A flag has the type, the choices and the sentence of its key in a recipe, unless a command line needs other
words than a recipe.
"""

from collections.abc import Callable
from typing import Any

import click

from ptq_cli.recipe.schema import SETTINGS
from ptq_cli.terminal.options import completion
from ptq_cli.terminal.options.completion import complete_names
from ptq_cli.terminal.options.help_sections import (
    DATA,
    EVALUATION,
    LAYERS,
    MODEL,
    RANGES,
    RUNNING,
    WEIGHTS,
    argument,
    option,
)
from ptq_cli.terminal.options.option_values import NameList
from ptq_cli.terminal.options.shared_options import PATH


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
    names = complete_names(completion.targets, or_files=True)
    return setting(
        MODEL, "quantization.target", default=default, shell_complete=names, metavar="NAME|FILE.TOML"
    )


def data_option(help: str, *names: str, section: str = DATA) -> Callable[[Any], Any]:
    """Return ``--data``, or another option that names data."""
    return option(
        section, *(names or ("--data",)), shell_complete=completion.complete_files, metavar="PATH", help=help
    )


MODEL_ARGUMENT = argument("model", required=False, type=PATH)
INPUT = option(
    MODEL,
    "--input",
    multiple=True,
    metavar="NAME=VALUE",
    help="Fix a model input to a constant: sr=16000, scale=[1,2]. Can be repeated.",
)
INPUT_SHAPE = option(
    MODEL,
    "--input-shape",
    multiple=True,
    metavar="NAME=N,N,…",
    help="Shape of a model input, if no data tells it. Can be repeated.",
)
MODEL_CODE = (
    setting(MODEL, "model.arch", shell_complete=completion.complete_files, metavar="FILE.PY:NAME"),
    setting(MODEL, "model.trust_pickle"),
)
MODEL_SOURCE = (*MODEL_CODE, INPUT, INPUT_SHAPE)
TARGET = target_option()
RENAME = option(
    DATA,
    "--rename",
    multiple=True,
    metavar="NAME=INPUT",
    help="Use the array NAME of the data as this input of the model, or as its label. Can be repeated.",
)
BATCH_AXIS = option(
    DATA,
    "--batch-axis",
    multiple=True,
    metavar="NAME=AXIS|none",
    help="Axis of the samples of an input or output; none for whole steps. Can be repeated.  "
    "[default: from the names of sizes, or 0]",
)
TOKENIZER = setting(DATA, "text.tokenizer", shell_complete=completion.complete_files, metavar="FILE")
CARRY = option(
    DATA,
    "--carry",
    multiple=True,
    metavar="OUTPUT=INPUT|none",
    help="Feed an output back as the next step's input; the data are recordings. Can be repeated.  "
    "[default: from the names and shapes]",
)
STEPS = setting(DATA, "data.steps")
READING = (RENAME, BATCH_AXIS, CARRY, STEPS, TOKENIZER)
"""How the arrays of data, or texts, become inputs."""
BATCH_SIZE = setting(DATA, "evaluation.batch_size")
CALIBRATION = (
    data_option("Calibration data: .npz, .npy, a folder of images, tar, Parquet, text, or FILE.PY:NAME."),
    setting(DATA, "calibration.samples"),
    BATCH_SIZE,
    *READING,
)
METHOD = option(
    RANGES,
    "--method",
    shell_complete=complete_names(completion.collectors),
    metavar="NAME",
    help="Statistics to collect: histogram or max.  [default: histogram]",
)
AMAX = option(
    RANGES,
    "--amax",
    shell_complete=complete_names(completion.amax_methods),
    metavar="METHOD",
    help="Method for activation ranges: auto, max, percentile, entropy or mse.  [default: auto]",
)
RECOVER = option(
    WEIGHTS,
    "--recover",
    type=NameList(),
    shell_complete=complete_names(completion.rungs),
    metavar="NAME,…",
    help="Recover accuracy with the calibration data: equalize, smooth, ranges, round, all, auto or "
    "none.  [default: auto]",
)
WEIGHT_BITS = setting(WEIGHTS, "weights.bits")
EXCLUDE = option(
    LAYERS,
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Keep the matching layers in float: 'head.*'. Can be repeated.",
)
OVERRIDE = option(
    LAYERS,
    "--override",
    multiple=True,
    metavar="PATTERN:KEY=VALUE,…",
    help="Settings for the matching layers: 'head.*:weights.bits=4'. Can be repeated.",
)
PREFER = setting(LAYERS, "export.prefer")
QUANTIZATION = (WEIGHT_BITS, RECOVER, EXCLUDE, OVERRIDE, PREFER)
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
THREADS = setting(RUNNING, "runtime.threads", default="0")
RESTART = option(
    RUNNING, "--restart", is_flag=True, help="Start over instead of continuing from a checkpoint."
)
SHARD = option(
    RUNNING,
    "--shard",
    metavar="K/N",
    help="Run only part K of N of the batches; ptq merge combines the parts.",
)

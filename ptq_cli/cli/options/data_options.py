"""Options about the model and the data that run through it."""

from ptq_cli.cli.help_sections import DATA, MODEL, RANGES, RUNNING, argument, option
from ptq_cli.cli.options import completion
from ptq_cli.cli.options.completion import complete_names
from ptq_cli.cli.options.shared_options import PATH

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
    option(
        MODEL,
        "--arch",
        shell_complete=completion.complete_files,
        metavar="FILE.PY:NAME",
        help="Function that builds the module for a state dict.",
    ),
    option(
        MODEL,
        "--trust-pickle",
        is_flag=True,
        default=None,
        help="Allow unpickling a whole module, which can run any code.",
    ),
)
MODEL_SOURCE = (*MODEL_CODE, INPUT, INPUT_SHAPE)
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
TOKENIZER = option(
    DATA,
    "--tokenizer",
    shell_complete=completion.complete_files,
    metavar="FILE",
    help="The model's tokenizer.json, for data that is text.",
)
READING = (RENAME, BATCH_AXIS, TOKENIZER)
"""How the arrays of data, or texts, become inputs."""
BATCH_SIZE = option(DATA, "--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 32]")
CALIBRATION = (
    option(
        DATA,
        "--data",
        shell_complete=completion.complete_files,
        metavar="PATH",
        help="Calibration data: .npz, .npy, a folder of images, tar, Parquet, text, or FILE.PY:NAME.",
    ),
    option(DATA, "--samples", type=int, metavar="N", help="Number of calibration samples.  [default: all]"),
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
RESTART = option(
    RUNNING, "--restart", is_flag=True, help="Start over instead of continuing from a checkpoint."
)
SHARD = option(
    RUNNING,
    "--shard",
    metavar="K/N",
    help="Run only part K of N of the batches; ptq merge combines the parts.",
)
MOMENTS = option(
    RUNNING,
    "--moments",
    is_flag=True,
    help="Run the data of a finished calibration again, for the moments that --recover weighed needs.",
)

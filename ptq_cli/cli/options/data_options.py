"""Options about the model and the data that run through it."""

from ptq_cli.cli.help_sections import DATA, MODEL, RANGES, RUNNING, argument, option
from ptq_cli.cli.options import shared_options as completion
from ptq_cli.cli.options.option_values import NumberList
from ptq_cli.cli.options.shared_options import DEVICE, PATH, RECIPES, RUN, TARGET, THREADS, complete_names

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
MODEL_SOURCE = (
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
    INPUT,
    INPUT_SHAPE,
)
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
    "[default: as names of sizes tell, or 0]",
)
NAMES = (RENAME, BATCH_AXIS)
TEXT = (
    option(
        DATA,
        "--tokenizer",
        shell_complete=completion.complete_files,
        metavar="FILE",
        help="The model's tokenizer.json, for data that is text.",
    ),
    option(
        DATA,
        "--text-column",
        multiple=True,
        metavar="NAME",
        help="Column of the texts in JSON lines or Parquet; twice for pairs.  [default: text]",
    ),
    option(DATA, "--label-column", metavar="NAME", help="Column of the labels of texts.  [default: label]"),
    option(
        DATA,
        "--window",
        type=int,
        metavar="N",
        help="Tokens per sample of text.  [default: the model's, or 128]",
    ),
    option(
        DATA,
        "--stride",
        type=int,
        metavar="N",
        help="Tokens from the start of a window to that of the next.  [default: the window]",
    ),
    option(
        DATA,
        "--tail",
        shell_complete=complete_names(completion.tails),
        metavar="drop|pad",
        help="What to do with leftover text.  [default: drop]",
    ),
    option(
        DATA,
        "--pack/--no-pack",
        default=None,
        help="Join texts and cut them into windows, or take each as a sample.  "
        "[default: join, except for encoders and with labels]",
    ),
    option(
        DATA,
        "--pairs",
        shell_complete=complete_names(completion.pairs),
        metavar="joined|apart",
        help="Read both texts of a pair as one sample, or as two.  [default: joined]",
    ),
    option(
        DATA,
        "--mask-share",
        type=float,
        metavar="SHARE",
        help="Share of the tokens to hide behind the mask token, for masked_top1.  [default: 0]",
    ),
)
IMAGE = (
    option(
        DATA,
        "--resize",
        type=NumberList(int),
        help="Resize images to HEIGHT,WIDTH, or their shorter side to N.",
    ),
    option(DATA, "--crop", type=NumberList(int), help="Crop the center of images to HEIGHT,WIDTH."),
    option(
        DATA,
        "--mean",
        type=NumberList(float),
        help="Mean to subtract from pixels: one number, or one per channel.",
    ),
    option(
        DATA,
        "--std",
        type=NumberList(float),
        help="Standard deviation to divide pixels by: one number, or one per channel.",
    ),
    option(
        DATA,
        "--scale",
        type=float,
        metavar="X",
        help="Factor for pixel values (0 to 255), applied before mean and std.  [default: 1/255]",
    ),
    option(
        DATA,
        "--image-mode",
        shell_complete=complete_names(completion.image_modes),
        metavar="MODE",
        help="Colors: RGB, BGR or L (gray).  [default: RGB]",
    ),
    option(
        DATA,
        "--layout",
        shell_complete=complete_names(completion.layouts),
        metavar="LAYOUT",
        help="Order of the axes: NCHW or NHWC.  [default: NCHW]",
    ),
)
SET_ASIDE = option(
    DATA,
    "--set-aside",
    type=float,
    metavar="SHARE",
    help="Fraction of calibration samples held out.  [default: 0; 0.5 for ptq tune]",
)
CALIBRATION = (
    option(
        DATA,
        "--data",
        shell_complete=completion.complete_files,
        metavar="PATH",
        help="Calibration data: .npz, .npy, a folder of images, tar, Parquet, text, or FILE.PY:NAME.",
    ),
    option(DATA, "--samples", type=int, metavar="N", help="Number of calibration samples.  [default: all]"),
    option(
        RANGES,
        "--method",
        shell_complete=complete_names(completion.collectors),
        metavar="NAME",
        help="Statistics to collect: histogram or max.  [default: histogram]",
    ),
)
KEPT = (
    option(
        RANGES,
        "--activation-axis",
        multiple=True,
        metavar="NAME=AXIS",
        help="Also collect statistics per channel along this axis: NAME=1, '*=-1'. Can be repeated.",
    ),
    option(
        RANGES,
        "--allow-nonfinite",
        is_flag=True,
        default=None,
        help="Count NaN and Inf instead of stopping, and decide ranges from the finite values.",
    ),
)
BATCH_SIZE = option(DATA, "--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 32]")
CHECKPOINTS = (
    option(
        RUNNING,
        "--checkpoint-every",
        type=float,
        metavar="SECONDS",
        help="Seconds between checkpoints.  [default: 30]",
    ),
    option(RUNNING, "--restart", is_flag=True, help="Start over instead of continuing from a checkpoint."),
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
MAX_MEMORY = option(
    RUNNING,
    "--max-memory",
    metavar="SIZE",
    help="Limit for the peak of host memory: 2GiB, 800MB. A lower limit can need more passes.",
)
STREAMING = (
    option(RUNNING, "--prefetch", type=int, metavar="N", help="Batches to decode ahead.  [default: 1]"),
    MAX_MEMORY,
)
CALIBRATING = (
    MODEL_ARGUMENT,
    *CALIBRATION,
    BATCH_SIZE,
    SET_ASIDE,
    *NAMES,
    *TEXT,
    *IMAGE,
    *MODEL_SOURCE,
    TARGET,
    RUN,
    *RECIPES,
    DEVICE,
    THREADS,
    *STREAMING,
    *CHECKPOINTS,
)
"""What every command that calibrates takes."""

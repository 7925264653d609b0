"""Options about ranges, quantizers and single layers."""

import click

from ptq_cli.cli.help_sections import ACTIVATIONS, LAYERS, RANGES, WEIGHTS, option
from ptq_cli.cli.options import shared_options as completion
from ptq_cli.cli.options.option_values import NameList
from ptq_cli.cli.options.shared_options import SERVE_BATCH, complete_names
from ptq_cli.recipe.sections import FLOAT_TYPES

AMAX = (
    option(
        RANGES,
        "--amax",
        shell_complete=complete_names(completion.amax_methods),
        metavar="METHOD",
        help="Method for activation ranges: auto, max, percentile, entropy or mse.  [default: auto]",
    ),
    option(
        RANGES,
        "--percentile",
        type=float,
        metavar="P",
        help="Percentage of the values that a range holds, for the method percentile.  [default: 99.999]",
    ),
    option(
        RANGES,
        "--weight-amax",
        shell_complete=complete_names(completion.weight_amax_methods),
        metavar="METHOD",
        help="Method for weight ranges: max, percentile, entropy or mse.  [default: max]",
    ),
    option(
        RANGES,
        "--amax-bins",
        type=int,
        metavar="N",
        help="Bins of the histogram that entropy and mse search.  [default: 2048]",
    ),
    option(
        RANGES,
        "--amax-start-bin",
        type=int,
        metavar="N",
        help="Bins in the smallest range that is tried.  [default: 128 for entropy, 1 for mse]",
    ),
    option(
        RANGES,
        "--amax-stride",
        type=int,
        metavar="N",
        help="Bins added from one tried range to the next.  [default: 1]",
    ),
)
RECOVER = option(
    WEIGHTS,
    "--recover",
    type=NameList(),
    shell_complete=complete_names(completion.rungs),
    metavar="NAME,…",
    help="Recover accuracy from the calibration data: equalize and smooth equalize channel ranges before the "
    "calibration; ranges chooses activation ranges by their effect on the outputs; weighed chooses scales, "
    "integers and biases of each layer by what it reads; round also makes up for what earlier layers lost; "
    "all, auto (equalize where it clearly helps, weighed and round for weights alone) or none.  "
    "[default: auto]",
)
ACTIVATION_MODE = option(
    ACTIVATIONS,
    "--activation-mode",
    shell_complete=complete_names(completion.activation_modes),
    metavar="MODE",
    help="static: quantize activations with calibrated ranges; dynamic: with ranges found at each run, for "
    "MatMul and Gemm; float: quantize weights only. Only static needs calibration data.  "
    "[default: static]",
)
QUANTIZERS = (
    option(
        WEIGHTS,
        "--weight-quantizer",
        shell_complete=complete_names(completion.quantizers),
        metavar="NAME",
        help="Quantizer for weights: scaled, fixed_point, dorefa, step or centers.  [default: scaled]",
    ),
    option(WEIGHTS, "--weight-bits", type=int, metavar="N", help="Bits per weight."),
    option(
        WEIGHTS,
        "--weight-granularity",
        shell_complete=complete_names(completion.granularities),
        metavar="NAME",
        help="One scale, or one set of centers, per channel or per tensor (scaled and centers only).",
    ),
    option(
        WEIGHTS,
        "--weight-block-size",
        type=int,
        metavar="N",
        help="Number of values that share a scale (scaled only).",
    ),
    option(
        WEIGHTS,
        "--weight-axis",
        type=int,
        metavar="N",
        help="Axis of the scales, or the axis that is divided into blocks (scaled only).",
    ),
    option(
        WEIGHTS,
        "--weight-dtype",
        shell_complete=complete_names(completion.weight_dtypes),
        metavar="NAME",
        help="Float type instead of integers: float8e4m3fn or float4e2m1 (scaled only; target tensorrt).",
    ),
    option(
        WEIGHTS,
        "--weight-symmetric/--no-weight-symmetric",
        default=None,
        help="Without symmetry, each block has a zero point (scaled with blocks only).  [default: symmetric]",
    ),
    option(
        WEIGHTS,
        "--weight-alpha",
        shell_complete=complete_names(completion.alphas),
        metavar="NAME",
        help="Scale factor: auto_po2 or none (fixed_point only).",
    ),
    option(
        WEIGHTS,
        "--weight-integer",
        type=int,
        metavar="N",
        help="Bits before the binary point (fixed_point only).",
    ),
    option(
        WEIGHTS, "--weight-step", type=float, metavar="X", help="Distance between two values (step only)."
    ),
    option(WEIGHTS, "--weight-centers", type=int, metavar="N", help="Number of centers (centers only)."),
    option(
        WEIGHTS,
        "--weight-seed",
        type=int,
        metavar="N",
        help="Seed of the random numbers that choose the first centers (centers only).",
    ),
    option(
        WEIGHTS,
        "--weight-restarts",
        type=int,
        metavar="N",
        help="Number of times that k-means starts from new centers (centers only).",
    ),
    ACTIVATION_MODE,
    option(
        ACTIVATIONS,
        "--activation-granularity",
        shell_complete=complete_names(completion.activation_granularities),
        metavar="NAME",
        help="One scale per row, or one per tensor (mode dynamic only).  [default: row]",
    ),
    option(
        ACTIVATIONS,
        "--activation-quantizer",
        shell_complete=complete_names(completion.activation_quantizers),
        metavar="NAME",
        help="Quantizer for activations: scaled, fixed_point or step.  [default: scaled]",
    ),
    option(
        ACTIVATIONS,
        "--activation-bits",
        type=int,
        metavar="N",
        help="Activation bits (2 to 8), stored in 8-bit integers (scaled only).  [default: 8]",
    ),
    option(
        ACTIVATIONS,
        "--activation-dtype",
        shell_complete=complete_names(completion.activation_dtypes),
        metavar="NAME",
        help="Integer type: int8, uint8, int16 or uint16; or float8e4m3fn or float4e2m1 (scaled only).  "
        "[default: the target's]",
    ),
    option(
        ACTIVATIONS,
        "--activation-symmetric/--no-activation-symmetric",
        default=None,
        help="Put the zero point in the middle of the integer type (scaled only).  [default: the target's]",
    ),
    option(
        ACTIVATIONS,
        "--activation-integer",
        type=int,
        metavar="N",
        help="Bits before the binary point (fixed_point only).",
    ),
    option(
        ACTIVATIONS,
        "--activation-step",
        type=float,
        metavar="X",
        help="Distance between two values (step only).",
    ),
)
OVERRIDES = (
    option(
        LAYERS,
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Keep the matching layers in float: 'head.*'. Can be repeated.",
    ),
    option(
        LAYERS,
        "--exclude-op",
        shell_complete=complete_names(completion.operators),
        multiple=True,
        metavar="OP",
        help="Keep layers of this operator in float: Gemm. Can be repeated.",
    ),
    option(
        LAYERS,
        "--include",
        multiple=True,
        metavar="PATTERN",
        help="Quantize only the matching layers. Can be repeated.",
    ),
    option(
        LAYERS,
        "--include-op",
        shell_complete=complete_names(completion.operators),
        multiple=True,
        metavar="OP",
        help="Quantize only layers of this operator. Can be repeated.",
    ),
    option(
        LAYERS,
        "--all-layers/--no-all-layers",
        default=None,
        help="Quantize also layers that save neither bytes nor time.  [default: no]",
    ),
    option(
        LAYERS,
        "--override",
        multiple=True,
        metavar="PATTERN:KEY=VALUE,…",
        help="Settings for the matching layers: 'head.*:weights.bits=4'. Can be repeated.",
    ),
)
FLOAT_TYPE = option(
    LAYERS,
    "--float-type",
    type=click.Choice(FLOAT_TYPES),
    help="Type of what is not quantized; float16 if the target computes in the types of the file.  "
    "[default: float32]",
)
RUNTIME_OPERATORS = option(
    LAYERS,
    "--runtime-operators/--no-runtime-operators",
    default=None,
    help="Use ONNX Runtime's own operators where they are faster; then no other runtime can read the model.  "
    "[default: the target's]",
)
PREFERENCE = (
    option(
        LAYERS,
        "--prefer",
        type=click.Choice(("accuracy", "latency", "size")),
        help="latency keeps layers in float where that is faster on this machine, by measuring each "
        "operator; size quantizes every layer that the target can.  [default: accuracy]",
    ),
    SERVE_BATCH,
    option(
        LAYERS,
        "--profile",
        shell_complete=completion.complete_files,
        metavar="FILE",
        help="Profile that ptq profile wrote on another machine, instead of measuring this one.",
    ),
)

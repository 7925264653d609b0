"""Options about metrics and the limits that they must keep."""

from ptq_cli.terminal.options.help_sections import EVALUATION, option

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

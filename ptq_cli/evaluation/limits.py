"""Limits as they are written: numbers, percentages and sizes."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ptq_cli.core.errors import GateError
from ptq_cli.core.words import parse_size
from ptq_cli.evaluation.document.measurement import GENERATED
from ptq_cli.recipe.sections import GateSettings, Limit

MAX_DROP_FLAG = "--max-drop"
MIN_FLAG = "--min"
MAX_RATIO_FLAG = "--set gate.max_ratio"
MAX_DRIFT_FLAG = "--set gate.max_drift"
MAX_SIZE_FLAG = "--max-size"
MAX_REGRESSION_FLAG = "--max-regression"
MAX_LATENCY_RATIO_FLAG = "--max-latency-ratio"
BUDGET_FLAG = "--budget"
EXAMPLES = {
    MAX_DROP_FLAG: "top1=0.01",
    MIN_FLAG: "sqnr_db=25",
    MAX_RATIO_FLAG: "perplexity=1.02",
    MAX_REGRESSION_FLAG: "top1=0.002",
    MAX_DRIFT_FLAG: "sqnr_db=3",
    MAX_SIZE_FLAG: "1MB",
    BUDGET_FLAG: "top1=0.5%",
}
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
# Between which values a metric of ptq lies; one that is not here is open at one end. The registry of the
# metrics would tell, but it imports numpy, and a gate alone is decided at once.
BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("class_accuracy", "f1", "auroc", "mean_iou", "masked_top1"), SHARE),
    **dict.fromkeys(("next_token_agreement", "exact_match", "top1_agreement", GENERATED), SHARE),
    **dict.fromkeys(("cosine", "cosine_of_embeddings", "spearman"), (-1.0, 1.0)),
}


def bounds_of(metric: str) -> Bounds | None:
    """Bounds of a metric of ptq, or None if it is open at one end, or not known."""
    name = metric.partition("[")[0]
    return SHARE if re.fullmatch("top[1-9][0-9]*", name) else BOUNDS.get(name)


def parse_limits(texts: Sequence[str], flag: str) -> dict[str, Limit]:
    """Read ``top1=0.01`` texts, as the flags take them; a percentage stays a text.

    Units: that of the metric; 0.01 of a share is one point. ``1%`` is of the value that the drop is from.
    Edge case: The last ``=`` divides, since an output's name in ``sqnr_db[a=b]=25`` may hold one.
    """
    limits: dict[str, Limit] = {}
    for text in texts:
        # From the right: names of metrics may hold an equals sign, as in file.py:callable.
        metric, equals, number = (part.strip() for part in text.rpartition("="))
        if not equals or not metric:
            raise GateError(f"{flag} '{text}' is not of the form METRIC=NUMBER", hint=_example(flag))
        if metric in limits:
            raise GateError(f"{flag} names '{metric}' twice", hint="keep one of the two limits")
        limits[metric] = number if number.endswith("%") else _number(number, f"{flag} '{text}'", flag)
        require_limit(metric, limits[metric], flag)
    return limits


def check_limits(gate: GateSettings, bounds: Mapping[str, Bounds | None] = MappingProxyType({})) -> None:
    """Refuse limits that no model could be judged by; limits from a recipe never passed ``parse_limits``."""
    by_flag: dict[str, Mapping[str, Limit]] = {
        MAX_DROP_FLAG: gate.max_drop,
        MAX_RATIO_FLAG: gate.max_ratio,
        MIN_FLAG: gate.min,
        MAX_REGRESSION_FLAG: gate.max_regression,
        MAX_DRIFT_FLAG: gate.max_drift,
    }
    for flag, limits in by_flag.items():
        for metric, limit in limits.items():
            require_limit(metric, limit, flag)
            require_output(metric, limit, flag, bounds)
            known = bounds[metric] if metric in bounds else bounds_of(metric)
            require_decisive(metric, limit, flag, known, is_minimum=flag == MIN_FLAG)
    if gate.max_size:
        size_limit(gate.max_size)
    ratio = gate.max_latency_ratio
    if ratio is not None and not 0 < ratio < math.inf:
        raise GateError(
            f"{MAX_LATENCY_RATIO_FLAG} {ratio:g} is not a valid ratio",
            hint=f"{MAX_LATENCY_RATIO_FLAG} 0.8 allows at most 0.8 times the float model's latency",
        )
    if gate.max_regression and gate.baseline is None:
        raise GateError(
            f"{MAX_REGRESSION_FLAG} needs an earlier report to compare with",
            hint="--baseline old-report.json",
        )
    if gate.baseline is not None and not gate.max_regression:
        raise GateError(
            "a baseline has no effect without a limit",
            hint=f"{MAX_REGRESSION_FLAG} top1=0.002, or leave --baseline out; ptq report OLD NEW shows what "
            "changed",
        )


def size_limit(text: str) -> int:
    """Bytes that ``--max-size`` says.

    Units: ``MB`` is 1,000,000 bytes, ``MiB`` is 1,048,576; a number alone is bytes.
    """
    size = parse_size(text)
    if not size:
        raise GateError(
            f"{MAX_SIZE_FLAG} '{text}' is not a valid size", hint="for example: --max-size 1MB, or 900KiB"
        )
    return size


def percentage(limit: Limit) -> float | None:
    """Number before the ``%`` of a limit that was checked, or None for a plain number."""
    return float(limit.removesuffix("%")) if isinstance(limit, str) else None


def absolute_limit(limit: Limit, reference: float) -> float:
    """A limit that was checked as a number in the metric's unit.

    A percentage is of ``reference``: the value that the drop is from; 1 for a minimum of a share and for a
    ratio.

    Edge case: A percentage of a negative value, such as an R² below 0, is of its magnitude.
    """
    return abs(reference) * float(limit.removesuffix("%")) / 100 if isinstance(limit, str) else float(limit)


def _number(text: str, what: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise GateError(f"{what}: '{text}' is not a number", hint=_example(flag)) from None


def require_limit(metric: str, limit: Limit, flag: str) -> None:
    """Refuse a limit that is not a finite number or percentage, or that is negative."""
    number = _percents(metric, limit, flag) if isinstance(limit, str) else limit
    if not math.isfinite(number):
        raise GateError(f"{_typed(flag, f'{metric}={limit}')} is not finite", hint=_example(flag))
    if flag == MAX_RATIO_FLAG and number <= 0:
        raise GateError(
            f"{_typed(flag, f'{metric}={limit}')} is not a valid ratio",
            hint=f"{_typed(flag, f'{metric}=1.02')} allows the quantized model 2 % more than the float model",
        )
    # A model better than its float one is a surprise, not a requirement: the sign is a slip.
    if flag != MIN_FLAG and number < 0:
        positive = str(limit).lstrip("-")
        raise GateError(
            f"{_typed(flag, f'{metric}={limit}')} is negative: only a model that got better would pass",
            hint=f"write the limit without a sign: {_typed(flag, f'{metric}={positive}')}",
        )


def require_output(metric: str, limit: Limit, flag: str, named: Iterable[str]) -> None:
    """Refuse a limit on a metric of the first output, if that metric was only named for other outputs."""
    known = list(named)
    others = [name for name in known if name.startswith(f"{metric}[")]
    if others and metric not in known:
        value = _written(limit)
        raise GateError(
            f"{_typed(flag, f'{metric}={value}')} is about the first output, but the metric was "
            f"named as {others[0]}",
            hint=f"write {_typed(flag, f'{others[0]}={value}')}",
        )


def require_decisive(
    metric: str, limit: Limit, flag: str, bounds: Bounds | None, *, is_minimum: bool
) -> None:
    """Refuse a limit that every value of a metric keeps, or that none does: percent written as a fraction.

    Edge case: A percentage of a drop is of a value that only the measurement tells; that of a minimum is of
    1.
    """
    said = _typed(flag, f"{metric}={_written(limit)}")
    if is_minimum and isinstance(limit, str) and bounds != SHARE:
        hint = (
            f"write it in the metric's own unit: {_typed(flag, 'sqnr_db=25')}; only shares may be percentages"
        )
        raise GateError(f"{said} is not a plain number", hint=hint)
    # A ratio has no upper bound, whatever the bounds of the metric.
    if bounds is None or flag == MAX_RATIO_FLAG:
        return
    (low, high), number = bounds, absolute_limit(limit, 1.0)
    lies = f"{metric} lies between {low:g} and {high:g}"
    if is_minimum:
        if number <= low:
            raise GateError(
                f"{said} can never fail: {lies}", hint=f"for example: {_typed(flag, f'{metric}=0.8')}"
            )
        if number > high:
            # 80 is most likely meant as 80 %.
            least = number / 100 if number <= 100 * high else 0.8
            raise GateError(
                f"{said} can never pass: {lies}", hint=f"did you mean {_typed(flag, f'{metric}={least:g}')}?"
            )
    elif number >= high - low and not (isinstance(limit, str) and low < 0):
        # A percentage of a value that may be negative is not known until the value is measured.
        meant = number / 100 if number < 100 * (high - low) else 0.01
        if isinstance(limit, str):
            drop, written = limit, f"{100 * meant:g}%"
        else:
            drop, written = f"{100 * number:g} points" if bounds == SHARE else f"{number:g}", f"{meant:g}"
        raise GateError(
            f"{said}: a drop of {drop} can never fail, because {lies}",
            hint=f"did you mean {_typed(flag, f'{metric}={written}')}?",
        )


def _percents(metric: str, limit: str, flag: str) -> float:
    if not limit.endswith("%"):
        raise GateError(
            f"{_typed(flag, f'{metric}={limit}')} is a string, expected a number or a percentage",
            hint=_example(flag),
        )
    number = _number(limit.removesuffix("%").strip(), _typed(flag, f"{metric}={limit}"), flag)
    if flag == MAX_RATIO_FLAG and number < 100:
        raise GateError(
            f"{_typed(flag, f'{metric}={limit}')} allows less than the float model's own value",
            hint=f"{_typed(flag, f'{metric}=102%')} or {metric}=1.02 allows the quantized model 2 % more",
        )
    return number


def _typed(flag: str, limit: str) -> str:
    """Return a limit as one types it.

    Example:
        >>> _typed(MAX_DROP_FLAG, "top1=0.01"), _typed(MAX_RATIO_FLAG, "perplexity=1.02")
        ('--max-drop top1=0.01', '--set gate.max_ratio.perplexity=1.02')
    """
    option, _, key = flag.partition(" ")
    return f"{option} {shlex.quote(f'{key}.{limit}' if key else limit)}"


def _written(limit: Limit) -> str:
    return limit if isinstance(limit, str) else f"{limit:g}"


def _example(flag: str) -> str:
    return f"for example: {_typed(flag, EXAMPLES[flag])}"

"""Limits as they are written: numbers, percentages and sizes."""

import math
from collections.abc import Mapping, Sequence

from ptq_cli.core.errors import GateError
from ptq_cli.core.work.memory import parse_size
from ptq_cli.recipe.sections.evaluation_sections import GateSettings
from ptq_cli.recipe.sections.field_kinds import Limit

MAX_DROP_FLAG = "--max-drop"
MIN_FLAG = "--min"
MAX_RATIO_FLAG = "--max-ratio"
MAX_SIZE_FLAG = "--max-size"
MAX_REGRESSION_FLAG = "--max-regression"
MAX_LATENCY_RATIO_FLAG = "--max-latency-ratio"
BUDGET_FLAG = "--budget"
EXAMPLES = {
    MAX_DROP_FLAG: "top1=0.01",
    MIN_FLAG: "sqnr_db=25",
    MAX_RATIO_FLAG: "perplexity=1.02",
    MAX_REGRESSION_FLAG: "top1=0.002",
    MAX_SIZE_FLAG: "1MB",
    BUDGET_FLAG: "top1=0.5%",
}


def parse_limits(texts: Sequence[str], flag: str) -> dict[str, Limit]:
    """Read ``top1=0.01`` texts, as the flags take them; a percentage stays a text.

    Units:
        that of the metric; 0.01 of a share is one point. ``1%`` is of the value that the drop is from.

    Edge case:
        The last ``=`` divides, since an output's name in ``sqnr_db[a=b]=25`` may hold one.

    Raises:
        GateError: a text is not ``METRIC=NUMBER``, a number is not finite, a drop is negative, or a metric is
            named twice.

    Example:
        >>> parse_limits(["top1=0.01", "top5=0.5%"], "--max-drop")
        {'top1': 0.01, 'top5': '0.5%'}
    """
    limits: dict[str, Limit] = {}
    for text in texts:
        metric, equals, number = (part.strip() for part in text.rpartition("="))
        if not equals or not metric:
            raise GateError(f"{flag} '{text}' is not of the form METRIC=NUMBER", hint=_example(flag))
        if metric in limits:
            raise GateError(f"{flag} names '{metric}' twice", hint="keep one of the two limits")
        limits[metric] = number if number.endswith("%") else _number(number, f"{flag} '{text}'", flag)
        require_limit(metric, limits[metric], flag)
    return limits


def check_limits(gate: GateSettings) -> None:
    """Refuse limits that no model could be judged by; limits from a recipe never passed ``parse_limits``.

    Raises:
        GateError: a limit is neither a finite number nor, where that has a meaning, a percentage; a drop is
            negative; a size cannot be read; or a regression has no baseline, or the other way round.

    Example:
        >>> check_limits(GateSettings(max_drop={"top1": "1%"}, max_size="1MB"))
    """
    by_flag: dict[str, Mapping[str, Limit]] = {
        MAX_DROP_FLAG: gate.max_drop,
        MAX_RATIO_FLAG: gate.max_ratio,
        MIN_FLAG: gate.min,
        MAX_REGRESSION_FLAG: gate.max_regression,
    }
    for flag, limits in by_flag.items():
        for metric, limit in limits.items():
            require_limit(metric, limit, flag)
    if gate.max_size:
        size_limit(gate.max_size)
    ratio = gate.max_latency_ratio
    if ratio is not None and not 0 < ratio < math.inf:
        raise GateError(
            f"{MAX_LATENCY_RATIO_FLAG} {ratio:g} is not a valid ratio",
            hint=f"{MAX_LATENCY_RATIO_FLAG} 0.8 allows int8 at most 0.8 times the float model's latency",
        )
    if gate.max_regression and gate.baseline is None:
        raise GateError(
            f"{MAX_REGRESSION_FLAG} needs an earlier report to compare with",
            hint="--baseline old-report.json",
        )
    if gate.baseline is not None and not gate.max_regression:
        raise GateError(
            "a baseline has no effect without a limit",
            hint=f"{MAX_REGRESSION_FLAG} top1=0.002, or leave --baseline out; ptq compare shows what changed",
        )


def size_limit(text: str) -> int:
    """Return how many bytes ``--max-size`` says.

    Units:
        ``MB`` is 1,000,000 bytes, ``MiB`` is 1,048,576; a number alone is bytes.

    Raises:
        GateError: it is not a size, or 0.

    Example:
        >>> size_limit("1.5MB")
        1500000
    """
    size = parse_size(text)
    if not size:
        raise GateError(
            f"{MAX_SIZE_FLAG} '{text}' is not a valid size", hint="for example: --max-size 1MB, or 900KiB"
        )
    return size


def percentage(limit: Limit) -> float | None:
    """Return the number before the ``%`` of a limit that was checked, or None for a plain number.

    Example:
        >>> percentage("1.5 %"), percentage(0.01)
        (1.5, None)
    """
    return float(limit.removesuffix("%")) if isinstance(limit, str) else None


def absolute_limit(limit: Limit, reference: float) -> float:
    """Return a limit that was checked as a number in the metric's unit.

    Args:
        limit: a number, or a percentage.
        reference: what a percentage is of: the value that the drop is from.

    Edge case:
        A percentage of a negative value, such as an R² below 0, is of its magnitude.

    Example:
        >>> absolute_limit("1%", 0.8), absolute_limit(0.01, 0.8)
        (0.008, 0.01)
    """
    return abs(reference) * float(limit.removesuffix("%")) / 100 if isinstance(limit, str) else float(limit)


def _number(text: str, what: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise GateError(f"{what}: '{text}' is not a number", hint=_example(flag)) from None


def require_limit(metric: str, limit: Limit, flag: str) -> None:
    """Refuse a limit that is not a finite number or percentage, or that is negative.

    Args:
        metric: its name.
        limit: on it.
        flag: the option that sets it, for the message; a minimum may be negative, and is no percentage.

    Raises:
        GateError: the message says what is wrong.

    Example:
        >>> require_limit("top1", "0.5%", BUDGET_FLAG)
    """
    number = _percents(metric, limit, flag) if isinstance(limit, str) else limit
    if not math.isfinite(number):
        raise GateError(f"{flag} {metric}={limit} is not finite", hint=_example(flag))
    if flag == MAX_RATIO_FLAG and number <= 0:
        raise GateError(
            f"{flag} {metric}={limit} is not a valid ratio",
            hint=f"{MAX_RATIO_FLAG} {metric}=1.02 allows the quantized model 2 % more than the float model",
        )
    # A model better than its float one is a surprise, not a requirement: the sign is a slip.
    if flag != MIN_FLAG and number < 0:
        raise GateError(
            f"{flag} {metric}={limit} is negative: only a model that got better would pass",
            hint=f"write the limit without a sign: {flag} {metric}={str(limit).lstrip('-')}",
        )


def _percents(metric: str, limit: str, flag: str) -> float:
    if flag in (MIN_FLAG, MAX_RATIO_FLAG):
        hints = {
            MIN_FLAG: "a minimum is in the metric's own unit: top1=0.8 is 80 %",
            MAX_RATIO_FLAG: f"write the ratio: {MAX_RATIO_FLAG} perplexity=1.02 allows 2 % more",
        }
        raise GateError(f"{flag} {metric}={limit} is not a plain number", hint=hints[flag])
    if not limit.endswith("%"):
        raise GateError(
            f"{flag} {metric}='{limit}' is a string, expected a number or a percentage", hint=_example(flag)
        )
    return _number(limit.removesuffix("%").strip(), f"{flag} '{metric}={limit}'", flag)


def _example(flag: str) -> str:
    return f"for example: {flag} {EXAMPLES[flag]}"

"""What recovery did to a model, in lines for a person and values for ``--json``."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptq_cli.pipeline.exporting.recovered_model import Recovery

MOST_NAMES = 3


def recovery_lines(recovery: "Recovery") -> Iterator[str]:
    """Yield what was recovered, and what was not.

    Example:
        >>> from ptq_cli.pipeline.exporting.recovered_model import LayerRecovery, Recovery
        >>> recovery = Recovery(
        ...     rungs=("round",),
        ...     changed=True,
        ...     kept=True,
        ...     before=17.58,
        ...     after=29.01,
        ...     samples=448,
        ...     decided_by=64,
        ...     layers={"conv": LayerRecovery(before=1e-2, after=1e-3)},
        ...     refused={"head": "no data reached this part of the model"},
        ...     damped=(),
        ... )
        >>> for line in recovery_lines(recovery):
        ...     print(line)
        recovered 1 layer (round): output SQNR from 17.6 to 29.0 dB on 64 samples set aside
        note: 1 layer was not recovered (head): no data reached this part of the model
    """
    rungs = ", ".join(recovery.rungs)
    by = f"on {_counted(recovery.decided_by, 'sample')} set aside"
    change = f"output SQNR from {_decibels(recovery.before)} to {_decibels(recovery.after)} dB {by}"
    if not recovery.layers:
        yield f"note: nothing was recovered ({rungs}): no layer could be"
    elif not recovery.changed:
        yield f"note: nothing was recovered ({rungs}): no better integers, scales or biases were found"
    elif recovery.kept:
        yield f"recovered {_counted(len(recovery.layers), 'layer')} ({rungs}): {change}"
    else:
        yield f"note: nothing was recovered ({rungs}): it did not help, so it was not kept ({change})"
    if recovery.damped and recovery.kept:
        yield (
            f"note: {_counted(len(recovery.damped), 'layer')} ({_names(recovery.damped)}) had fewer rows of "
            "data than inputs: more samples may help"
        )
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in recovery.refused.items():
        reasons[reason].append(name)
    for reason, names in reasons.items():
        were = "was" if len(names) == 1 else "were"
        yield f"note: {_counted(len(names), 'layer')} {were} not recovered ({_names(names)}): {reason}"


def recovery_values(recovery: "Recovery") -> dict[str, Any]:
    """Return what recovery did, for JSON; an SQNR that is not finite is null."""
    return {
        "rungs": list(recovery.rungs),
        "kept": recovery.kept,
        "sqnr_db_before": recovery.before if math.isfinite(recovery.before) else None,
        "sqnr_db_after": recovery.after if math.isfinite(recovery.after) else None,
        "samples": recovery.samples,
        "decided_by": recovery.decided_by,
        "layers": {
            name: {"error_before": item.before, "error_after": item.after}
            for name, item in recovery.layers.items()
        },
        "not_recovered": dict(recovery.refused),
        "few_rows": list(recovery.damped),
    }


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "infinitely many" if value > 0 else "no"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

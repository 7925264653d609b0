"""Settings of a metric that the recipe defines."""

from dataclasses import dataclass, field
from typing import Any

ENTRY_POINTS = {"entry_points": True}
"""Marks a field whose texts are names or entry points; the file of ``file.py:callable`` is resolved."""


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """``[[metric]]``: a metric with arguments; each metric that is defined is computed.

    Attributes:
        metric: the name of a metric in ptq, ``"file.py:callable"``, or a class such as
            ``"torchmetrics.classification:MulticlassF1Score"``.
        name: name of the metric in reports and limits; if not set, the name of the class or function, with
            the output in brackets.
        output: name of the output that it is computed on; the first output if not set.
        arguments: arguments of its constructor; a function gets them in addition to output and labels. For
            metrics of torchmetrics, ``num_classes`` and ``num_labels`` come from the output if they are not
            given.
        higher_is_better: false for an error; if not set, the metric itself decides.
    """

    metric: str = field(metadata=ENTRY_POINTS)
    name: str | None = None
    output: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    higher_is_better: bool | None = None

"""Settings of a metric that the recipe defines."""

from dataclasses import dataclass, field
from typing import Any

ENTRY_POINTS = {"entry_points": True}
"""Of a field whose texts are names or entry points; the file of ``file.py:callable`` is resolved."""


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """``[[metric]]``: a metric with arguments; each that is defined is measured.

    Attributes:
        metric: a name of ptq's, ``"file.py:callable"``, or a class such as
            ``"torchmetrics.classification:MulticlassF1Score"``.
        name: what reports and limits call it; without one the name of the class or function, with the output
            in brackets.
        output: the output that it judges; the first without a name.
        arguments: what its constructor is given; a function gets them beside output and labels. Of
            torchmetrics, ``num_classes`` and ``num_labels`` are taken from the output where they are not
            given.
        higher_is_better: false for an error; where nothing is said, the metric says so itself.
    """

    metric: str = field(metadata=ENTRY_POINTS)
    name: str | None = None
    output: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    higher_is_better: bool | None = None

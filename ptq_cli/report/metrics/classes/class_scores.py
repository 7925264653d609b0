"""Class scores: what an output must look like, and the class that it chooses."""

import numpy as np

from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape
from ptq_cli.report.metrics.base import Labels

MIN_CLASSES = 2


def require_scores(output: Array, name: str, least: int = MIN_CLASSES) -> None:
    """Refuse an output that is not a table of class scores.

    Args:
        output: of a batch.
        name: the metric's.
        least: how many classes it needs.

    Raises:
        MetricError: it is not [samples, classes], or has too few classes.

    Example:
        >>> require_scores(np.zeros((4, 10)), "top1")
    """
    if output.ndim != 2:
        raise MetricError(
            f"{name} needs an output of shape [samples, classes], got {format_shape(output.shape)}",
            hint=f"leave the metric out, or give the output that has the class scores: {name}[OUTPUT]",
        )
    if output.shape[1] < least:
        raise MetricError(
            f"{name} needs an output with {least} classes or more, got {output.shape[1]}",
            hint="leave the metric out: it would be the same for every model",
        )


def predicted_class(output: Array, name: str) -> Labels:
    """Return the class with the highest score of each sample; of equal ones the lowest.

    Shapes:
        output [N, classes]; the result is [N].

    Raises:
        MetricError: the output is not a table of class scores.

    Example:
        >>> predicted_class(np.array([[0.1, 0.9], [0.5, 0.5]]), "f1")
        array([1, 0])
    """
    require_scores(output, name)
    found: Labels = np.argmax(output, axis=1)
    return found

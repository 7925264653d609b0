"""Checks around metrics of the user's code: what they get, and what they return."""

from ptq_cli.core.errors import MetricError, first_line
from ptq_cli.core.tensors import Array, format_shape


def raised(name: str, error: Exception) -> MetricError:
    """Return the error that says what code of the user's raised."""
    return MetricError(
        f"{name} raised {type(error).__name__}: {first_line(error)}",
        hint="check that it accepts the output and the labels; --debug shows the traceback",
    )


def require_samples_first(name: str, output: Array, labels: Array) -> None:
    """Refuse an output whose samples lie on another axis, as those of a recurrent layer do."""
    count, shape = int(labels.shape[0] if labels.ndim else 1), output.shape
    if count > 1 and shape[0] != count and count in shape:
        raise MetricError(
            f"{name} has {count} labels, and {shape[0]} samples in an output of shape {format_shape(shape)}",
            hint=f"if its samples are on axis {shape.index(count)}, say so with the name of the output: "
            f"--set data.batch_axis.output={shape.index(count)}",
        )


def as_number(name: str, found: Array) -> float:
    """Return what a metric computed as a number."""
    if found.dtype.kind not in "biuf" or found.size != 1:
        raise MetricError(
            f"{name} returned {described(found)}, expected one number",
            hint="if the metric has a value for each class, ask for a mean, such as "
            "arguments = { average = 'macro' } under [[metric]]",
        )
    return float(found.reshape(()))


def described(found: Array) -> str:
    """Say what was given instead of what is wanted."""
    if found.dtype.kind not in "biuf":
        return str(found.reshape(-1)[:1])[:60]
    return "one number" if found.ndim == 0 else f"numbers of shape {format_shape(found.shape)}"

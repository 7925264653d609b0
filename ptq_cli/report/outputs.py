"""What a model's outputs must look like before a metric may see them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.calibdata.batch import Batch
from ptq_cli.core.errors import MetricError
from ptq_cli.core.tensors import Array, format_shape


@dataclass(frozen=True)
class Place:
    """Where in the evaluation set a batch lies, to name a sample in a message.

    Attributes:
        batch: the batch.
        first: index of its first sample in the whole set.
    """

    batch: Batch
    first: int

    def sample(self, index: int) -> str:
        """Name the batch's sample ``index``: ``sample 33 (cat.png)``."""
        return f"sample {self.first + index} ({self.batch.names[index]})"

    def whole(self) -> str:
        """Name all samples of the batch: ``samples 32 to 63``."""
        return f"samples {self.first} to {self.first + self.batch.size - 1}"


def require_comparable(
    float_outputs: Sequence[Array], quantized_outputs: Sequence[Array], names: Sequence[str], place: Place
) -> None:
    """Check both models' outputs of one batch: as many as named, alike in shape, numbers, finite.

    Raises:
        MetricError: they are not; the message names the model, the output and the sample.

    Example:
        >>> batch = Batch({"x": np.ones((1, 2))}, labels=None, names=("cat.png",))
        >>> try:
        ...     require_comparable([np.ones((1, 2))], [np.array([[1, np.nan]])], ["y"], Place(batch, first=7))
        ... except MetricError as error:
        ...     print(error.message)
        the quantized model's output 'y' holds NaN at sample 7 (cat.png)
    """
    for model, outputs in (("float", float_outputs), ("quantized", quantized_outputs)):
        if len(outputs) != len(names):
            raise MetricError(
                f"the {model} model gave {len(outputs)} outputs, {len(names)} are wanted: {', '.join(names)}",
                hint="compare a float model with its own quantized model",
            )
        for name, output in zip(names, outputs, strict=True):
            _require_finite(output, f"the {model} model's output '{name}'", place)
    for name, expected, found in zip(names, float_outputs, quantized_outputs, strict=True):
        if expected.shape != found.shape:
            raise MetricError(
                f"output '{name}' has shape {format_shape(expected.shape)} from the float model and "
                f"{format_shape(found.shape)} from the quantized model, at {place.whole()}",
                hint="compare a float model with its own quantized model",
            )


def _require_finite(output: Array, what: str, place: Place) -> None:
    if output.dtype.kind not in "biuf":
        raise MetricError(
            f"{what} has dtype {output.dtype}, numbers are wanted",
            hint="export the model with its scores as output",
        )
    finite = np.isfinite(output)
    if finite.all():
        return
    kind = "NaN" if np.isnan(output).any() else "Inf"
    bad = np.isnan(output) if kind == "NaN" else ~finite
    on_samples = output.ndim >= 1 and output.shape[0] == place.batch.size
    where = place.sample(int(np.argwhere(bad)[0][0])) if on_samples else place.whole()
    raise MetricError(
        f"{what} holds {kind} at {where}",
        hint=f"look at the model's arithmetic or at that sample; a metric of {kind} would mean nothing",
    )

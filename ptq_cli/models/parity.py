"""The ONNX model must compute what the source computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.core.errors import ParityError
from ptq_cli.core.tensors import Array, format_shape

RELATIVE_TOLERANCE = 1e-3  # of the largest magnitude; two float32 runtimes differ by some 1e-6
HALF_TOLERANCE = 0.02  # of a float16 model, which keeps 11 bits of each result


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Names and hints of a comparison, for messages.

    ``tolerance`` is relative to the largest magnitude.
    """

    reference: str
    other: str
    model: str
    size_hint: str
    value_hint: str
    tolerance: float = RELATIVE_TOLERANCE


WITH_PYTORCH = Compared(
    reference="PyTorch",
    other="ONNX",
    model="the ONNX model",
    size_hint="the model may depend on the batch size; try another --set data.batch_size",
    value_hint="make the model deterministic (no dropout in forward), or export ONNX yourself and pass it",
)
WITH_FILE = Compared(
    reference="the file",
    other="the prepared graph",
    model="the prepared graph",
    size_hint="if the model draws no random numbers, report this model",
    value_hint="if the model draws no random numbers, export it with opset 20, or report this model",
)


def require_parity(
    expected: Sequence[Array],
    found: Sequence[Array],
    names: Sequence[str],
    what: str,
    *,
    allow_nan: bool = False,
    compared: Compared = WITH_PYTORCH,
) -> float:
    """Return the largest difference of outputs on one batch, relative to the largest magnitude of its output.

    With ``allow_nan`` NaN in both outputs at the same place does not count. Another number of outputs,
    another shape, NaN in the source's or a larger difference is a ParityError.
    """
    if len(expected) != len(found):
        raise ParityError(
            f"'{what}' has {len(expected)} outputs in {compared.reference} and {len(found)} in "
            f"{compared.other}",
            hint="report this model",
        )
    worst = 0.0
    for name, wanted, got in zip(names, expected, found, strict=True):
        if wanted.shape != got.shape:
            raise ParityError(
                f"'{what}': output '{name}' is {format_shape(wanted.shape)} in {compared.reference} and "
                f"{format_shape(got.shape)} in {compared.other}",
                hint=compared.size_hint,
            )
        if not allow_nan and wanted.dtype.kind in "fc" and np.isnan(wanted).any():
            raise ParityError(
                f"'{what}': output '{name}' of {compared.reference} holds NaN, so that {compared.model} "
                "cannot be compared with it",
                hint="check the model's weights and the data for NaN: the training may have diverged, or a "
                "division by zero or an overflow makes them",
            )
        relative, largest = _difference(wanted, got, allow_nan=allow_nan)
        if not relative <= compared.tolerance:
            raise ParityError(
                f"'{what}': output '{name}' of {compared.model} differs from {compared.reference}'s by "
                f"{largest:.3g} ({relative:.2%} of its largest value; the limit is {compared.tolerance:.1%})",
                hint=compared.value_hint,
            )
        worst = max(worst, relative)
    return worst


def largest_difference(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the largest difference of outputs of the same shapes, relative to the largest magnitude of each.

    Edge case: NaN where only one of them has it, or none of several shapes is comparable.

    Example:
        >>> largest_difference([np.float32([1.0, 2.0])], [np.float32([1.0, 2.5])])
        0.25
    """
    pairs = list(zip(expected, found, strict=True))
    if any(one.shape != other.shape for one, other in pairs):
        return float("nan")
    return max((_difference(*pair, allow_nan=True)[0] for pair in pairs), default=0.0)


_AT_ONCE = 1 << 22  # values compared at once


def _difference(wanted: Array, got: Array, *, allow_nan: bool) -> tuple[float, float]:
    """Return the largest difference, relative to the largest magnitude and as it is."""
    if wanted.size == 0:
        return 0.0, 0.0
    magnitude = largest = 0.0
    for start in range(0, wanted.size, _AT_ONCE):  # Logits in float64 take more than a model's layers.
        part = slice(start, start + _AT_ONCE)
        reference, other = (array.reshape(-1)[part].astype(np.float64) for array in (wanted, got))
        if allow_nan:
            numbers = ~(np.isnan(reference) & np.isnan(other))
            reference, other = reference[numbers], other[numbers]
        with np.errstate(invalid="ignore"):  # inf - inf: both agree, or the comparison tells
            difference = np.abs(reference - other)
        difference[reference == other] = 0.0
        # NaN of a part stays, as it does in the maximum of the whole.
        magnitude = float(np.maximum(magnitude, np.max(np.abs(reference), initial=0.0)))
        largest = float(np.maximum(largest, np.max(difference, initial=0.0)))
    return largest / max(magnitude, 1e-6), largest

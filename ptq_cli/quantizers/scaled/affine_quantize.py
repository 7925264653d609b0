"""The quantizer with a zero point: any integer of the format may stand for 0.

Forward it computes what ONNX Runtime computes for QuantizeLinear and DequantizeLinear, bit for bit.
NVIDIA's form, whose zero point need not be an integer of the format, is in ``tensor_quant``.
"""

import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.quantizers.grid import (
    Real,
    granularity_of,
    read_parameter,
    require_float,
    require_no_nan,
    require_scale,
)
from ptq_cli.quantizers.scaled.scaled_quantize import rounded_steps
from ptq_cli.quantizers.straight_through import clipped


# The quantizer with a zero point: any integer of the format may stand for 0.
#
# Forward it computes what ONNX Runtime computes for QuantizeLinear and DequantizeLinear, bit for bit.
# NVIDIA's form, whose zero point need not be an integer of the format, is in ``tensor_quant``.
def fake_quantize_affine(
    x: torch.Tensor,
    scale: Real,
    zero_point: Real,
    format: IntegerFormat,
    axis: int | None = None,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Quantize and dequantize with a zero point.

    ``(saturate(round_half_even(x / scale) + zero_point) - zero_point) * scale``.

    The gradient of ``x`` is the upstream gradient where x lies in the representable range
    ``[(qmin - zero_point) * scale, (qmax - zero_point) * scale]``, edges included, and 0 elsewhere;
    scale and zero point get none.

    Shapes: x: any; the result has the same, and its dtype. scale, zero_point: ``()``, or
        ``(x.shape[axis],)``.
    Units: scale: real units per integer step.
    Edge case: ±inf saturates. NaN stays NaN, unless ``check`` refuses it. What depends on values is checked
        in eager mode only, not while compiling.

    Raises:
        QuantizerValueError: a scale is not a positive float32, a zero point no integer of the format, or x
            is checked and holds NaN.
        QuantizerTypeError: x is not a float tensor.
        QuantizerShapeError: a parameter has the wrong shape.
        AxisError: x has no such axis.

    Source: ONNX QuantizeLinear and DequantizeLinear, opset 13; Krishnamoorthi 2018, "Quantizing deep
        convolutional networks for efficient inference", sections 2.1 and 2.4.

    Example:
        >>> from ptq_cli.core.formats import UINT8
        >>> x = torch.tensor([-6.0, -1.1, 0.2, 122.5, 123.0], requires_grad=True)
        >>> y = fake_quantize_affine(x, 0.5, 10, UINT8)
        >>> y.tolist()
        [-5.0, -1.0, 0.0, 122.5, 122.5]
        >>> y.sum().backward()
        >>> x.grad.tolist()
        [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    require_float(x)
    if check:
        require_no_nan(x)
    granularity = granularity_of(axis)
    step = read_parameter("scale", scale, x, granularity).to(x.device, torch.float32)
    zero = read_parameter("zero_point", zero_point, x, granularity).to(x.device, torch.float32)
    require_scale(step)
    _require_zero_point(zero, format)
    # Saturating before the zero point is added keeps the sum exact, and then it cancels.
    low, high = format.qmin - zero, format.qmax - zero
    return clipped(_affine_values, x, low * step, high * step, step, low, high)


def _require_zero_point(zero_point: torch.Tensor, format: IntegerFormat) -> None:
    if torch.compiler.is_compiling():
        return
    allowed = (zero_point >= format.qmin) & (zero_point <= format.qmax) & (zero_point % 1 == 0)
    if not bool(allowed.all()):
        wrong = float(zero_point[~allowed].reshape(-1)[0])
        raise QuantizerValueError(
            f"zero point {wrong:g} is not a {format.name}, expected {format.qmin} to {format.qmax}"
        )


def _affine_values(
    x: torch.Tensor, scale: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    return rounded_steps(x, scale).clamp_(low, high).mul_(scale).add_(0.0)

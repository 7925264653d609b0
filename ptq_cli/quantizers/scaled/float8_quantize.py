"""The float8 format E4M3: 4 bits of exponent, 3 of mantissa, the largest value 448."""

import torch

from ptq_cli.core.errors import UnsupportedFormatError
from ptq_cli.quantizers.grid import FAINT_AMAX, require_amax, require_float, require_no_nan
from ptq_cli.quantizers.straight_through import clipped

E4M3_MAX = 448.0


def scaled_e4m3(
    inputs: torch.Tensor,
    amax: torch.Tensor | None = None,
    exponent_bits: int = 4,
    mantissa_bits: int = 3,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Round to the nearest value of E4M3, after ``amax`` is scaled to 448: ``e4m3(inputs * s) / s``.

    The gradient of ``inputs`` passes where ``|inputs| <= amax``, edge included; amax has none.

    Args:
        inputs: the tensor; computed in float32.
        amax: what becomes 448; None for 448 itself, which scales nothing.
        exponent_bits: 4.
        mantissa_bits: 3.
        check: refuse NaN, which otherwise stays NaN.

    Shapes: inputs: any; the result has the same, and its dtype. amax: broadcasts to inputs.
    Edge case: Ties go to the even mantissa; beyond 448, ±inf too, the result is ±448. An amax not above 2^-24
        gives 0.

    Raises: UnsupportedFormatError: the bits are not 4 and 3. QuantizerValueError: amax is negative or not
        finite, or NaN among inputs that are checked. QuantizerTypeError: inputs is not a float tensor.

    Source: Micikevicius et al. 2022, "FP8 formats for deep learning", section 3; NVIDIA pytorch-quantization
        2.2.1, ``tensor_quant.ScaledE4M3Function``.

    Example:
        >>> scaled_e4m3(torch.tensor([0.3, 17.0, 500.0])).tolist()
        [0.3125, 16.0, 448.0]
        >>> scaled_e4m3(torch.tensor([0.5, 2.0]), torch.tensor(1.0)).tolist()
        [0.5, 1.0]
    """
    if (exponent_bits, mantissa_bits) != (4, 3):
        raise UnsupportedFormatError(
            f"a float8 format with {exponent_bits} bits of exponent and {mantissa_bits} of mantissa is not "
            "there",
            hint="E4M3 is supported: exponent_bits=4, mantissa_bits=3",
        )
    require_float(inputs)
    if check:
        require_no_nan(inputs)
    if amax is None:
        amax = torch.full((), E4M3_MAX, device=inputs.device)
    require_amax(amax)
    bound = amax.detach().to(torch.float32)
    scale = torch.full((), E4M3_MAX, device=bound.device) / bound
    dead = bound <= FAINT_AMAX
    return clipped(_values, inputs, None, bound, scale.masked_fill(dead, 0.0), scale.masked_fill(dead, 1.0))


def _values(inputs: torch.Tensor, multiplier: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    # Clamped first: torch's cast makes NaN of what is too large.
    scaled = (inputs.to(torch.float32) * multiplier).clamp_(-E4M3_MAX, E4M3_MAX)
    return scaled.to(torch.float8_e4m3fn).to(torch.float32).div_(scale)

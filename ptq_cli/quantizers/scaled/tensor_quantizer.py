"""The scaled quantizer as a module: it calibrates, quantizes, or lets a tensor pass."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import nn

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerValueError, UnsupportedFormatError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.known_names import require_known
from ptq_cli.quantizers.grid import (
    FAINT_AMAX,
    Real,
    integer_format,
    require_amax,
    require_float,
    require_no_nan,
    require_not_negative,
)
from ptq_cli.quantizers.scaled.descriptor import E4M3, QuantDescriptor
from ptq_cli.quantizers.scaled.scaled_quantize import Calibrator, fake_quantize_to, quantize_to, values_of
from ptq_cli.quantizers.straight_through import clipped, fresh, pass_where
from ptq_cli.recipe.sections import AmaxSettings

# The float8 format E4M3: 4 bits of exponent, 3 of mantissa, the largest value 448.


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

    Shapes:
        inputs: any; the result has the same, and its dtype. amax: broadcasts to inputs.

    Edge case:
        Ties go to the even mantissa; beyond 448, ±inf too, the result is ±448. An amax not above 2^-24 gives
        0.

    Raises:
        UnsupportedFormatError: the bits are not 4 and 3.
        QuantizerValueError: amax is negative or not finite, or NaN among inputs that are checked.
        QuantizerTypeError: inputs is not a float tensor.

    Source:
        Micikevicius et al. 2022, "FP8 formats for deep learning", section 3; NVIDIA pytorch-quantization
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


# Fake quantization whose amax learns: clipped learning, with the gradient of the step size.


Gradients = tuple[torch.Tensor | None, ...]


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
        ctx.save_for_backward(x, amax)
        ctx.format = format
        return fresh(values_of(x, amax, format))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Gradients:
        x, amax = ctx.saved_tensors
        wide, bound = x.to(torch.float32), amax.to(torch.float32)
        inside = (wide >= -bound) & (wide <= bound)
        values = values_of(wide, bound, ctx.format)
        slope = torch.where(inside, values - wide, values) / bound.clamp_min(FAINT_AMAX)
        learned = pass_where(bound > FAINT_AMAX, grad_outputs[0].to(torch.float32) * slope)
        return pass_where(inside, grad_outputs[0]), learned.sum_to_size(amax.shape).to(amax.dtype), None


def learned_fake_quantize(x: torch.Tensor, amax: torch.Tensor, format: IntegerFormat) -> torch.Tensor:
    """Return the values of ``scaled_quantize.fake_quantize``, with a gradient for amax too.

    The gradient of ``x`` is the upstream one where ``|x| <= amax``, otherwise 0. ``dy/damax`` is ``y / amax``
    where x is clipped, which is ±1, as in PACT; inside it is ``(y - x) / amax``, the rounding error's share,
    as in LSQ: together what autograd makes of ``round(clamp(x, -amax, amax) / scale) * scale`` with ``scale =
    amax / qmax`` and a straight-through rounding. LSQ's factor on the gradient is left to the learning rate.

    Args:
        x: the tensor; computed in float32 for every float dtype.
        amax: the largest magnitude that is represented.
        format: bits, sign and range of the integers.

    Shapes:
        x: any; the result has the same, and its dtype. amax: broadcasts to it.

    Edge case:
        An amax not above 2^-24 gives 0, and gets gradient 0: it has died. NaN stays NaN, and makes the
        gradient of amax NaN.

    Raises:
        QuantizerValueError: amax is negative or not finite.
        QuantizerTypeError: x is not a float tensor, or the format unsigned and x holds negative values.

    Source:
        Choi et al. 2018, "PACT: Parameterized clipping activation for quantized neural networks", section 3;
        Esser et al. 2020, "Learned step size quantization", section 2.1.

    Example:
        >>> x = torch.tensor([-2.0, 0.3, 1.0], requires_grad=True)
        >>> amax = torch.tensor(1.0, requires_grad=True)
        >>> learned_fake_quantize(x, amax, IntegerFormat(2, signed=True, narrow_range=True)).sum().backward()
        >>> x.grad.tolist(), round(amax.grad.item(), 4)
        ([0.0, 1.0, 1.0], -1.3)
    """
    require_float(x)
    if not format.signed:
        require_not_negative(x)
    require_amax(amax)
    result: torch.Tensor = _Learned.apply(x, amax.to(x.device), format)  # type: ignore[no-untyped-call]
    return result


# The largest magnitude of a tensor in PyTorch, over all or some of its axes.


Axes = int | Sequence[int] | None


def reduce_amax(x: torch.Tensor, axis: Axes = None, keepdims: bool = True) -> torch.Tensor:
    """Return the largest magnitude over ``axis``, without a gradient.

    Args:
        x: the tensor.
        axis: the axes that are reduced; None for all.
        keepdims: keep them with size 1, so that the result broadcasts to x.

    Shapes:
        x: any; the result is x's without the reduced axes, or with 1 there; () where one value remains.

    Units:
        As x.

    Edge case:
        No values have the largest magnitude 0. NaN is the largest.

    Raises:
        AxisError: x has no such axis, or it is named twice.

    Source:
        NVIDIA pytorch-quantization 2.2.1, ``utils.reduce_amax``.

    Example:
        >>> x = torch.tensor([[1.0, -3.0], [2.0, 0.0]])
        >>> reduce_amax(x).item(), reduce_amax(x, axis=1).tolist(), reduce_amax(x, 0, keepdims=False).tolist()
        (3.0, [[3.0], [2.0]], [2.0, 3.0])
    """
    axes = _axes(x, axis)
    magnitudes = x.detach().abs()
    for index in axes:
        if magnitudes.shape[index]:
            magnitudes = magnitudes.amax(dim=index, keepdim=True)
        else:
            magnitudes = magnitudes.sum(dim=index, keepdim=True)
    if magnitudes.numel() == 1:
        return magnitudes.reshape(())
    if keepdims:
        return magnitudes
    return magnitudes.reshape([size for index, size in enumerate(magnitudes.shape) if index not in axes])


def _axes(x: torch.Tensor, axis: Axes) -> list[int]:
    if axis is None:
        return list(range(x.ndim))
    named = [axis] if isinstance(axis, int) else list(axis)
    for index in named:
        if not -x.ndim <= index < x.ndim:
            raise AxisError(f"axis {index} is outside a tensor of shape {tuple(x.shape)}")
    axes = [index % x.ndim for index in named]
    if len(set(axes)) < len(axes):
        raise AxisError(f"the axes {tuple(named)} of a tensor of shape {tuple(x.shape)} name one axis twice")
    return axes


State = Literal["calibrating", "quantizing", "disabled"]
STATES: tuple[State, ...] = get_args(State)

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class TensorQuantizer(nn.Module):
    """Quantizes a tensor as its descriptor says, with ONNX's arithmetic (``scaled``).

    Attributes:
        descriptor: what it is.
        amax: a buffer, or a parameter where the descriptor says ``learn_amax``; None before there is one.
            Then each tensor is quantized with its own largest magnitude.
        state: ``"quantizing"`` at first; ``"calibrating"`` collects statistics and lets tensors pass;
            ``"disabled"`` lets them pass. As ``training``, it is not in the state dict.

    Shapes:
        amax: (), or one value for each index along the descriptor's axes: (C,), or the tensor's rank with 1
            elsewhere.

    Edge case:
        ``half()`` and its like leave amax in float32. A state dict without a descriptor, such as one that
        holds amax alone, keeps the descriptor that is there.

    Raises:
        QuantizerValueError: the descriptor's bits are out of range, or its amax negative or not finite.
        UnsupportedFormatError: the descriptor asks for an E4M3 whose amax learns, or for its integers.

    Source:
        NVIDIA pytorch-quantization 2.2.1, ``nn.TensorQuantizer``, but for the arithmetic.

    Example:
        >>> quantizer = TensorQuantizer(QuantDescriptor(num_bits=4, narrow_range=True))
        >>> quantizer.state = "calibrating"
        >>> _ = quantizer(torch.tensor([-0.7, 0.2]))
        >>> quantizer.decide_amax().state
        'quantizing'
        >>> [round(value, 4) for value in quantizer(torch.tensor([-0.7, 0.24, 9.0])).tolist()]
        [-0.7, 0.2, 0.7]
    """

    amax: torch.Tensor | None

    def __init__(self, descriptor: QuantDescriptor | None = None) -> None:
        super().__init__()
        self._state: State = "quantizing"
        self._calibrator: Calibrator | None = None
        self._device = torch.device("cpu")
        self._describe(descriptor or QuantDescriptor())
        if self.descriptor.amax is not None:
            self.set_amax(torch.tensor(self.descriptor.amax))

    @property
    def state(self) -> State:
        """What it does with a tensor."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        require_known("state", state, STATES)
        if state == "calibrating" and self._calibrator is None:
            self._calibrator = Calibrator(self.descriptor.calib_method, self._kept)
        self._state = state

    def forward(self, x: torch.Tensor) -> Output:
        """Return x fake-quantized, or its integers and their scale where ``fake_quant`` is false.

        Shapes:
            x: any; the result has the same.

        Raises:
            QuantizerShapeError: amax does not fit x.
            QuantizerTypeError, QuantizerValueError: as ``scaled_quantize.fake_quantize``; or x is not
                finite while it is calibrated.
        """
        if self._state == "disabled":
            return x
        if self._state == "calibrating" and self._calibrator is not None:
            self._calibrator.update(x)
            self._device = x.device
            return x
        amax = self._amax_for(x)
        if self._format is None:
            return scaled_e4m3(x, amax)
        if not self.descriptor.fake_quant:
            return quantize_to(x, amax.detach(), self._format)
        if self.descriptor.learn_amax:
            return learned_fake_quantize(x, amax, self._format)
        return fake_quantize_to(x, amax, self._format)

    def decide_amax(self, settings: AmaxSettings | None = None) -> Self:
        """Set amax from the statistics, begin to quantize, and return itself.

        The statistics stay, so that another method can decide again.

        Args:
            settings: the method and its settings; by default percentile of a histogram, max without one.

        Raises:
            QuantizerValueError: nothing was calibrated.
            MissingStatisticError: the method needs histograms; use ``calib_method="histogram"``.
            UnknownNameError: there is no such method.
        """
        if self._calibrator is None:
            raise QuantizerValueError(
                "the quantizer was not calibrated", hint='set its state to "calibrating" and run data'
            )
        # E4M3 has no integers; its levels are as fine as those of 8 bits at the upper end.
        format = self._format or IntegerFormat(8, signed=True)
        self.set_amax(self._calibrator.amax(settings or AmaxSettings(), format))
        if self.amax is not None:  # where the data are that it was calibrated on
            self.amax = self._held(self.amax.detach().to(self._device))
        self._state = "quantizing"
        return self

    def set_amax(self, amax: Real | None) -> None:
        """Set amax, or take it away.

        Raises:
            QuantizerValueError: it is negative or not finite.
        """
        if amax is None:
            self.amax = None
            return
        value = torch.as_tensor(amax, dtype=torch.float32).detach().clone()
        require_amax(value)
        if self.amax is not None:
            value = value.to(self.amax.device)
        self.amax = self._held(value)

    def _held(self, amax: torch.Tensor) -> torch.Tensor:
        return nn.Parameter(amax) if self.descriptor.learn_amax else amax

    def extra_repr(self) -> str:
        """Return descriptor, amax and state."""
        if self.amax is None:
            amax = "dynamic"
        elif self.amax.numel() == 1:
            amax = f"{float(self.amax.detach()):.4g}"
        else:
            amax = f"{float(self.amax.detach().min()):.4g}…{float(self.amax.detach().max()):.4g}"
        return f"{self.descriptor}, amax={amax}, {self._state}"

    def get_extra_state(self) -> torch.Tensor:
        """Return the descriptor as bytes of JSON, which every format of state dicts can hold."""
        return torch.tensor(list(json.dumps(self.descriptor.to_dict()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take the descriptor that ``get_extra_state`` returned; amax stays.

        Raises:
            QuantizerValueError: the bytes are not a descriptor.
        """
        try:
            plain = json.loads(bytes(state.tolist()))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise QuantizerValueError(f"the descriptor in the state dict cannot be read: {error}") from error
        descriptor = QuantDescriptor.from_dict(plain)
        if descriptor != self.descriptor:
            amax, self.amax = self.amax, None
            self._describe(descriptor)
            self._calibrator = None
            self.set_amax(amax)

    def _describe(self, descriptor: QuantDescriptor) -> None:
        self.descriptor = descriptor
        self._format = _format_of(descriptor)
        axis = descriptor.axis
        self._kept = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
        self.__dict__.pop("amax", None)
        self._buffers.pop("amax", None)
        self._parameters.pop("amax", None)
        if descriptor.learn_amax:
            self.register_parameter("amax", None)
        else:
            self.register_buffer("amax", None)

    def _amax_for(self, x: torch.Tensor) -> torch.Tensor:
        if self.amax is None:
            kept = [index % x.ndim for index in self._kept]
            rest = [index for index in range(x.ndim) if index not in kept]
            amax = reduce_amax(x, rest if kept else None)
        else:
            amax = _lay_out(self.amax, x, self._kept)
        return amax if self.descriptor.scale_amax is None else amax * self.descriptor.scale_amax

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        before = None if self.amax is None else self.amax.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.amax is not None and self.amax.dtype is not torch.float32:
            # float16 may not hold the amax of a float16 model's weights.
            self.amax.data = before.to(self.amax.device)
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        *rest: Any,
    ) -> None:
        extra, amax = state_dict.get(f"{prefix}_extra_state"), state_dict.get(f"{prefix}amax")
        if extra is not None:
            self.set_extra_state(extra)
        if amax is not None:
            self.set_amax(torch.zeros(amax.shape))
        elif extra is not None:
            self.set_amax(None)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        if f"{prefix}_extra_state" in missing:
            missing.remove(f"{prefix}_extra_state")


def _format_of(descriptor: QuantDescriptor) -> IntegerFormat | None:
    """Return the integers' format; None for E4M3."""
    if isinstance(descriptor.num_bits, int):
        return integer_format(descriptor.num_bits, descriptor.unsigned, descriptor.narrow_range)
    if descriptor.learn_amax or not descriptor.fake_quant:
        raise UnsupportedFormatError(
            f"num_bits={E4M3} has neither integers nor an amax that learns",
            hint="use fake_quant=True and learn_amax=False, or a number of bits",
        )
    return None


def _lay_out(amax: torch.Tensor, x: torch.Tensor, kept: tuple[int, ...]) -> torch.Tensor:
    """Return amax with x's rank, or as one value."""
    shape = [1] * x.ndim
    for index in kept:
        if -x.ndim <= index < x.ndim:
            shape[index] = x.shape[index]
    if amax.numel() == 1 and not kept:
        return amax.reshape(())
    if (amax.ndim == 1 and len(kept) == 1 and amax.numel() == max(shape)) or list(amax.shape) == shape:
        return amax.reshape(shape)
    raise QuantizerShapeError(
        f"amax of shape {tuple(amax.shape)} does not fit a tensor of shape {tuple(x.shape)}, axes {kept}",
        hint=f"its shape must be {tuple(shape) if kept else ()}",
    )

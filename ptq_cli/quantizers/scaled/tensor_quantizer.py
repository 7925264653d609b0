"""The scaled quantizer as a module: it calibrates, quantizes, or lets a tensor pass."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import nn

from ptq_cli.amax.decide import check_amax_settings, resolve_method
from ptq_cli.amax.method_registry import find_method
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.max_collector import Collector
from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerValueError, UnsupportedFormatError
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.words import require_known
from ptq_cli.quantizers.grid import Real, integer_format, require_amax
from ptq_cli.quantizers.scaled.descriptor import E4M3, QuantDescriptor
from ptq_cli.quantizers.scaled.float8_quantize import scaled_e4m3
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize_to, learned_fake_quantize, quantize_to
from ptq_cli.recipe.sections import AmaxSettings

_Axes = int | Sequence[int] | None


class Calibrator:
    """Collects, for a tensor or for each index along its kept axes.

    Args:
        method: the collector's name.
        kept: the axes along which each index has statistics of its own; none for one of the whole tensor.
    """

    def __init__(self, method: str, kept: tuple[int, ...]) -> None:
        make_collector(method)
        self._method, self._kept = method, kept
        self._collectors: list[Collector] = []
        self._shape: tuple[int, ...] = ()

    def update(self, x: torch.Tensor) -> None:
        """Add a tensor's values.

        Shapes: x: any, with the same rank and the same sizes along the kept axes at each call.
        """
        if not bool(torch.isfinite(x).all()):
            raise QuantizerValueError("NaN and infinite values have no range to be calibrated")
        kept = tuple(index % x.ndim for index in self._kept)
        shape = tuple(size if index in kept else 1 for index, size in enumerate(x.shape)) if kept else ()
        if not self._collectors:
            self._shape = shape
            self._collectors = [make_collector(self._method) for _ in range(torch.Size(shape).numel())]
        if shape != self._shape:
            raise QuantizerShapeError(f"the kept axes had the shape {self._shape} and now have {shape}")
        rows = x.detach().to("cpu", torch.float32)
        rest = [index for index in range(x.ndim) if index not in kept]
        rows = rows.permute(*sorted(kept), *rest).reshape(len(self._collectors), -1)
        for collector, row in zip(self._collectors, rows.numpy(), strict=True):
            collector.update(row)

    def amax(self, settings: AmaxSettings, format: IntegerFormat) -> torch.Tensor:
        """Amax by a method, from the statistics.

        Args:
            settings: names the method.
            format: that the amax is for.

        Shapes: As the tensors', with 1 for the axes that are not kept; () without kept ones.
        """
        check_amax_settings(settings)
        if not self._collectors:
            raise QuantizerValueError(
                "no tensor was calibrated yet", hint='run data through the model in the state "calibrating"'
            )
        found = []
        for collector in self._collectors:
            statistics = collector.statistics()
            method = find_method(resolve_method(settings, has_histogram=statistics.histogram is not None))
            found.append(method.symmetric(statistics, settings, format).amax)
        return torch.tensor(found, dtype=torch.float32).reshape(self._shape)


def reduce_amax(x: torch.Tensor, axis: _Axes = None, keepdims: bool = True) -> torch.Tensor:
    """The largest magnitude over ``axis``, without a gradient.

    Args:
        x: the tensor.
        axis: the axes that are reduced; None for all.
        keepdims: keep them with size 1, so that the result broadcasts to x.

    Shapes: x: any; the result is x's without the reduced axes, or with 1 there; () where one value remains.
    Units: As x.
    Edge case: No values have the largest magnitude 0. NaN is the largest.

    Raises: AxisError: x has no such axis, or it is named twice.

    Source: NVIDIA pytorch-quantization 2.2.1, ``utils.reduce_amax``.

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


def _axes(x: torch.Tensor, axis: _Axes) -> list[int]:
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


_State = Literal["calibrating", "quantizing", "disabled"]
STATES: tuple[_State, ...] = get_args(_State)
Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class TensorQuantizer(nn.Module):
    """Quantizes a tensor as its descriptor says, with ONNX's arithmetic (``scaled``).

    Attributes:
        descriptor: what it is.
        amax: a buffer, or a parameter where the descriptor says ``learn_amax``; None before there is one.
            Then each tensor is quantized with its own largest magnitude.
        state: ``"quantizing"`` at first; ``"calibrating"`` collects statistics and lets tensors pass;
            ``"disabled"`` lets them pass. As ``training``, it is not in the state dict.

    Shapes: amax: (), or one value for each index along the descriptor's axes: (C,), or the tensor's rank with
        1 elsewhere.
    Edge case: ``half()`` and its like leave amax in float32. A state dict without a descriptor, such as one
        that holds amax alone, keeps the descriptor that is there.

    Raises: QuantizerValueError: the descriptor's bits are out of range, or its amax negative or not finite.
        UnsupportedFormatError: the descriptor asks for an E4M3 whose amax learns, or for its integers.

    Source: NVIDIA pytorch-quantization 2.2.1, ``nn.TensorQuantizer``, but for the arithmetic.

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
        self._state: _State = "quantizing"
        self._calibrator: Calibrator | None = None
        self._device = torch.device("cpu")
        self._describe(descriptor or QuantDescriptor())
        if self.descriptor.amax is not None:
            self.set_amax(torch.tensor(self.descriptor.amax))

    @property
    def state(self) -> _State:
        """What it does with a tensor."""
        return self._state

    @state.setter
    def state(self, state: _State) -> None:
        require_known("state", state, STATES)
        if state == "calibrating" and self._calibrator is None:
            self._calibrator = Calibrator(self.descriptor.calib_method, self._kept)
        self._state = state

    def forward(self, x: torch.Tensor) -> Output:
        """Return x fake-quantized, or its integers and their scale where ``fake_quant`` is false.

        Shapes: x: any; the result has the same.

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

        Raises: QuantizerValueError: nothing was calibrated. MissingStatisticError: the method needs
            histograms; use ``calib_method="histogram"``. UnknownNameError: there is no such method.
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

        Raises: QuantizerValueError: it is negative or not finite.
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
        """Descriptor, amax and state."""
        if self.amax is None:
            amax = "dynamic"
        elif self.amax.numel() == 1:
            amax = f"{float(self.amax.detach()):.4g}"
        else:
            amax = f"{float(self.amax.detach().min()):.4g}…{float(self.amax.detach().max()):.4g}"
        return f"{self.descriptor}, amax={amax}, {self._state}"

    def get_extra_state(self) -> torch.Tensor:
        """The descriptor as bytes of JSON, which every format of state dicts can hold."""
        return torch.tensor(list(json.dumps(self.descriptor.to_dict()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take the descriptor that ``get_extra_state`` returned; amax stays.

        Raises: QuantizerValueError: the bytes are not a descriptor.
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
    """The integers' format; None for E4M3."""
    if isinstance(descriptor.num_bits, int):
        return integer_format(descriptor.num_bits, descriptor.unsigned, descriptor.narrow_range)
    if descriptor.learn_amax or not descriptor.fake_quant:
        raise UnsupportedFormatError(
            f"num_bits={E4M3} has neither integers nor an amax that learns",
            hint="use fake_quant=True and learn_amax=False, or a number of bits",
        )
    return None


def _lay_out(amax: torch.Tensor, x: torch.Tensor, kept: tuple[int, ...]) -> torch.Tensor:
    """Amax with x's rank, or as one value."""
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

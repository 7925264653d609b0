"""Ranges of what a quantizer sees: kept by ptq's collectors, decided by its amax methods."""

from collections.abc import Sequence

import torch

from ptq_cli.amax.decide import check_amax_settings, resolve_method
from ptq_cli.amax.method_registry import find_method
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.collectors.max_collector import Collector
from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerValueError
from ptq_cli.core.formats import IntegerFormat
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

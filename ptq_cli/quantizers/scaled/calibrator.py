"""Statistics of what a quantizer sees: kept by ptq's collectors, decided by its amax methods."""

import torch

from ptq_cli.amax.decide import check_amax_settings, resolve_method
from ptq_cli.amax.plugin_methods import find_method
from ptq_cli.collectors.collector import Collector
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.core.errors import QuantizerShapeError, QuantizerValueError
from ptq_cli.core.numbers.formats import IntegerFormat
from ptq_cli.recipe.sections.calibration_sections import AmaxSettings


class Calibrator:
    """Collects, for a tensor or for each index along its kept axes.

    Args:
        method: the collector's name.
        kept: the axes along which each index has statistics of its own; none for one of the whole tensor.

    Raises:
        UnknownNameError: there is no such collector.

    Example:
        >>> calibrator = Calibrator("max", kept=(0,))
        >>> calibrator.update(torch.tensor([[1.0, -2.0], [0.0, 0.5]]))
        >>> calibrator.amax(AmaxSettings(method="max"), IntegerFormat(8, signed=True)).tolist()
        [[2.0], [0.5]]
    """

    def __init__(self, method: str, kept: tuple[int, ...]) -> None:
        make_collector(method)
        self._method, self._kept = method, kept
        self._collectors: list[Collector] = []
        self._shape: tuple[int, ...] = ()

    def update(self, x: torch.Tensor) -> None:
        """Add a tensor's values.

        Shapes:
            x: any, with the same rank and the same sizes along the kept axes at each call.

        Raises:
            QuantizerShapeError: the sizes changed.
            QuantizerValueError: x holds NaN or infinite values; then nothing of it is kept.
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
        """Return what a method makes of the statistics.

        Args:
            settings: names the method.
            format: that the amax is for.

        Shapes:
            As the tensors', with 1 for the axes that are not kept; () without kept ones.

        Raises:
            UnknownNameError: there is no such method.
            MissingStatisticError: it needs histograms, and the collector kept none.
            QuantizerValueError: there are no statistics yet.
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

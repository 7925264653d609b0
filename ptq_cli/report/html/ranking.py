"""The measure of a layer's sensitivity: the drop of a metric, or the SQNR of the model's output."""

from dataclasses import dataclass
from typing import Literal, cast

from ptq_cli.report.analysis.analysis_document import Analysis, LayerAnalysis
from ptq_cli.report.document.measurement import Unit
from ptq_cli.report.text.summary import format_drop


@dataclass(frozen=True)
class Ranking:
    """What layers are ranked by.

    Attributes:
        by: ``"metric"`` for a drop, where larger is worse, or ``"sqnr"``, where smaller is worse.
        metric: the metric's name; empty for the SQNR.
        unit: unit of the drop.
    """

    by: Literal["metric", "sqnr"] = "sqnr"
    metric: str = ""
    unit: Unit = "number"

    @classmethod
    def of(cls, analysis: Analysis | None) -> "Ranking":
        """Return what an analysis ranks by: the SQNR if its metric has no drop.

        Example:
            >>> Ranking.of(None).label
            'SQNR of the output with only this layer quantized (dB)'
        """
        if analysis is None or analysis.metric is None or analysis.order == "sqnr":
            return cls()
        if analysis.metric.float_value is None:
            return cls()
        return cls("metric", analysis.metric.name, cast(Unit, analysis.metric.unit))

    @property
    def label(self) -> str:
        """The label of an axis."""
        if self.by == "sqnr":
            return "SQNR of the output with only this layer quantized (dB)"
        points = " in points" if self.unit == "share" else ""
        return f"Drop of {self.metric}{points} with only this layer quantized"

    def value(self, layer: LayerAnalysis | None) -> float | None:
        """Return a layer's value; None if there is none."""
        if layer is None or layer.sensitivity is None:
            return None
        found = layer.sensitivity
        return found.sqnr_only_quantized_db if self.by == "sqnr" else found.drop_only_quantized

    def badness(self, value: float) -> float:
        """Return a number that is larger the more accuracy a layer costs."""
        return -value if self.by == "sqnr" else value

    def drawn(self, value: float) -> float:
        """Return a value in the unit of ``label``."""
        return 100 * value if self.by == "metric" and self.unit == "share" else value

    def text(self, value: float) -> str:
        """Write a value with its unit."""
        return f"{value:.1f} dB" if self.by == "sqnr" else format_drop(value, self.unit)

"""Each layer in two quantized models: where it runs, and how near its output is to the float model's."""

from dataclasses import dataclass

from ptq_cli.report.analysis.analysis_document import Analysis
from ptq_cli.report.document.report_document import LayerEntry, Report


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """A layer of either model.

    Attributes:
        name: the node's name.
        op: its operator.
        before: the first report's entry; None if it has no such layer.
        after: the second's.
        sqnr_before: SQNR of its output as the first quantized model runs. Decibels; None if not analyzed.
        sqnr_after: in the second.
    """

    name: str
    op: str
    before: LayerEntry | None
    after: LayerEntry | None
    sqnr_before: float | None = None
    sqnr_after: float | None = None

    @property
    def has_moved(self) -> bool:
        """Whether it runs elsewhere, for another reason, or is in one model only."""
        return _runs(self.before) != _runs(self.after)


def layer_differences(
    before: Report, after: Report, analyses: tuple[Analysis, Analysis] | None = None
) -> tuple[LayerDifference, ...]:
    """Return each layer of two reports, in the second's order; those that only the first has come last.

    Args:
        before: the earlier report.
        after: the later one.
        analyses: of the two quantized models; None if one is missing.
    """
    old, new = ({layer.name: layer for layer in report.layers} for report in (before, after))
    first, second = map(_sqnr, analyses) if analyses is not None else ({}, {})
    return tuple(
        LayerDifference(
            name=name,
            op=(new.get(name) or old[name]).op,
            before=old.get(name),
            after=new.get(name),
            sqnr_before=first.get(name),
            sqnr_after=second.get(name),
        )
        for name in dict.fromkeys([*new, *old])
    )


def _sqnr(analysis: Analysis) -> dict[str, float | None]:
    return {layer.name: layer.sqnr_accumulated_db for layer in analysis.layers}


def _runs(layer: LayerEntry | None) -> tuple[bool, str] | None:
    return (layer.integer, layer.reason) if layer is not None else None

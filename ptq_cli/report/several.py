"""Several quantized models of one float model, side by side."""

from collections.abc import Iterator, Sequence

from ptq_cli.report.document import Report
from ptq_cli.report.measurement import Measurement
from ptq_cli.report.summary import Row, Table, format_bytes, format_drop, format_value


def several_tables(reports: Sequence[Report]) -> tuple[Table, ...]:
    """Return tables with a column for each report: metrics with their drops, then comparisons and sizes.

    Args:
        reports: of one float model on the same samples, with the same metrics.
    """
    names = tuple(report.model.quantized_model.name for report in reports)
    metrics = list(zip(*(report.metrics for report in reports), strict=True))
    label_rows = tuple(row for found in metrics for row in _label_rows(found))
    pair_rows = tuple(
        (found[0].name, *(format_value(metric.quantized_value, metric.unit) for metric in found))
        for found in metrics
        if found[0].float_value is None
    )
    sizes = tuple(format_bytes(report.model.quantized_model.bytes) for report in reports)
    return (
        Table(("metric", "float", *names), label_rows),
        Table(("int8 against float", *names), (*pair_rows, ("size", *sizes))),
    )


def _label_rows(found: Sequence[Measurement]) -> Iterator[Row]:
    first = found[0]
    if first.float_value is None:
        return
    values = (format_value(metric.quantized_value, metric.unit) for metric in found)
    yield (first.name, format_value(first.float_value, first.unit), *values)
    drops = (format_drop(metric.drop, metric.unit) if metric.drop is not None else "" for metric in found)
    yield ("  drop", "", *drops)

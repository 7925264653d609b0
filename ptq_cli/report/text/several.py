"""Several quantized models of one float model, side by side."""

from collections.abc import Iterator, Mapping, Sequence

from ptq_cli.core.short_numbers import format_bytes
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.document.report_document import Report
from ptq_cli.report.text.summary import Row, Table, format_drop, format_value, metric_labels


def several_tables(reports: Sequence[Report]) -> tuple[Table, ...]:
    """Return tables with one column per report: metrics with their drops, then comparisons and sizes.

    Args:
        reports: about one float model, on the same samples, with the same metrics.
    """
    names = tuple(report.model.quantized_model.name for report in reports)
    labels = metric_labels(reports[0])
    metrics = list(zip(*(report.metrics for report in reports), strict=True))
    with_pytorch = any(found[0].pytorch_value is not None for found in metrics)
    label_rows = tuple(
        row for found in metrics for row in _label_rows(found, labels, with_pytorch=with_pytorch)
    )
    pair_rows = tuple(
        (labels[found[0].name], *(format_value(metric.quantized_value, metric.unit) for metric in found))
        for found in metrics
        if found[0].float_value is None
    )
    sizes = tuple(format_bytes(report.model.quantized_model.bytes) for report in reports)
    return (
        Table(("metric", *(["PyTorch"] if with_pytorch else []), "float", *names), label_rows),
        Table(("against float", *names), (*pair_rows, ("size", *sizes))),
    )


def _label_rows(
    found: Sequence[Measurement], labels: Mapping[str, str], *, with_pytorch: bool
) -> Iterator[Row]:
    first = found[0]
    if first.float_value is None:
        return
    references = (first.pytorch_value, first.float_value) if with_pytorch else (first.float_value,)
    before = ("" if value is None else format_value(value, first.unit) for value in references)
    values = (format_value(metric.quantized_value, metric.unit) for metric in found)
    yield (labels[first.name], *before, *values)
    drops = (format_drop(metric.drop, metric.unit) if metric.drop is not None else "" for metric in found)
    yield ("  drop", *("" for _ in references), *drops)

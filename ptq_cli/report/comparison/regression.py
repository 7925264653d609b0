"""Two reports of one model: whether they can be compared, and how much worse the later one is."""

from pathlib import PurePath

from ptq_cli.core.errors import BaselineError
from ptq_cli.report.document.hits import flips_between
from ptq_cli.report.document.measurement import Measurement
from ptq_cli.report.document.report_document import BaselineSummary, ModelSummary, Report
from ptq_cli.report.intervals.score_interval import drop_interval


def require_comparable_baseline(report: Report, baseline: Report) -> None:
    """Refuse a baseline that says nothing about the report.

    A model is the same if its float graph is, or the name of its file: a baseline from before a new training
    is what one wants to compare with.

    Raises:
        BaselineError: it is of another model, or was measured on other data.
    """
    require_same_model(report.model, baseline.model)
    if baseline.evaluation.data_digest != report.evaluation.data_digest:
        raise BaselineError(
            f"the baseline was measured on different data: {baseline.evaluation.samples} samples of "
            f"'{baseline.evaluation.source}' whose digest differs",
            hint="evaluate the baseline's model again on this data",
        )


def require_same_model(model: ModelSummary, earlier: ModelSummary) -> None:
    """Refuse a baseline of another model.

    Raises:
        BaselineError: both the float graph and the name of the model's file differ.
    """
    name, other = PurePath(model.source).name, PurePath(earlier.source).name
    if name != other and model.float_model.sha256 != earlier.float_model.sha256:
        raise BaselineError(
            f"the baseline is for a different model: '{other}', not '{name}', and its float graph differs",
            hint="pass a report of the same model, or make one",
        )


def baseline_summary(baseline: Report) -> BaselineSummary:
    """Return what a later report says of its baseline."""
    return BaselineSummary(baseline.created, baseline.model.quantized_model.sha256)


def regression(before: Measurement, after: Measurement, samples: int) -> Measurement:
    """Return how one metric of the quantized model changed, as if the earlier model were the float one.

    Args:
        before: what the baseline measured.
        after: what was measured now.
        samples: on how many, the same for both.

    Units:
        those of the metric; ``drop`` of the result is how much worse it became.

    Edge case:
        There is no interval where the reports do not say which samples are right: of an SQNR, a cosine, or a
        report of format version 1.

    Source:
        Tango 1998 for the interval, see ``drop_interval``.

    Example:
        >>> old = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.6,
        ...     float_value=0.6,
        ...     quantized_hits="e0",
        ... )
        >>> new = Measurement(
        ...     name="top1",
        ...     unit="share",
        ...     needs_labels=True,
        ...     higher_is_better=True,
        ...     quantized_value=0.4,
        ...     float_value=0.6,
        ...     quantized_hits="c0",
        ... )
        >>> found = regression(old, new, samples=5)
        >>> round(found.drop, 3), found.flips.lost, found.flips.gained
        (0.2, 1, 0)
    """
    flips = None
    if before.quantized_hits is not None and after.quantized_hits is not None:
        flips = flips_between(before.quantized_hits, after.quantized_hits, samples)
    return Measurement(
        name=after.name,
        unit=after.unit,
        needs_labels=after.needs_labels,
        higher_is_better=after.higher_is_better,
        quantized_value=after.quantized_value,
        float_value=before.quantized_value,
        drop_interval=drop_interval(flips) if flips is not None else None,
        flips=flips,
    )

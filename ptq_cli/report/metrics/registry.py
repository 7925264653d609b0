"""Every metric by its name. To add one: write its file, add its line here."""

from collections.abc import Callable, Sequence
from functools import partial

from ptq_cli.core.errors import UnknownNameError, did_you_mean
from ptq_cli.report.metrics.agreement import Top1Agreement
from ptq_cli.report.metrics.base import LabelMetric, PairMetric
from ptq_cli.report.metrics.cosine import Cosine
from ptq_cli.report.metrics.max_abs_error import MaxAbsError
from ptq_cli.report.metrics.sqnr import Sqnr
from ptq_cli.report.metrics.top_k import TopK

LABEL_METRICS: dict[str, Callable[[], LabelMetric]] = {"top1": partial(TopK, 1), "top5": partial(TopK, 5)}
"""Computed on request, on each model."""

PAIR_METRICS: dict[str, type[PairMetric]] = {
    "sqnr_db": Sqnr,
    "cosine": Cosine,
    "top1_agreement": Top1Agreement,
    "max_abs_error": MaxAbsError,
}
"""Always computed, between the two models."""


def requested_label_metrics(names: Sequence[str]) -> list[str]:
    """Return which of ``names`` need labels, each once, in the order given.

    Edge case:
        A label-free metric may be named too; it is computed anyway, so it asks for nothing.

    Raises:
        UnknownNameError: no metric has that name.

    Example:
        >>> requested_label_metrics(["top5", "sqnr_db", "top1", "top5"])
        ['top5', 'top1']
    """
    known = [*LABEL_METRICS, *PAIR_METRICS]
    for name in names:
        if name not in known:
            raise UnknownNameError(
                f"no metric is called '{name}'{did_you_mean(name, known)}", hint=f"known: {', '.join(known)}"
            )
    return [name for name in dict.fromkeys(names) if name in LABEL_METRICS]

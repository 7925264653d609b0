"""Metrics by name."""

import pytest

from ptq_cli.core.errors import UnknownNameError
from ptq_cli.report.metrics.registry import LABEL_METRICS, PAIR_METRICS, requested_label_metrics


def test_every_name_has_one_meaning() -> None:
    assert not set(LABEL_METRICS) & set(PAIR_METRICS)


def test_an_instance_keeps_its_own_counts() -> None:
    assert LABEL_METRICS["top1"]() is not LABEL_METRICS["top1"]()


def test_keeps_order_and_drops_repeats_and_label_free_names() -> None:
    assert requested_label_metrics(["top5", "cosine", "top1", "top5"]) == ["top5", "top1"]


def test_an_unknown_metric_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        requested_label_metrics(["top2"])
    assert str(caught.value) == (
        "PTQ-RECIPE-004: no metric is called 'top2' (did you mean 'top5'?)\n"
        "hint: known: top1, top5, sqnr_db, cosine, top1_agreement, max_abs_error"
    )

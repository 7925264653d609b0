"""Metrics by name."""

import pytest

from ptq_cli.core.errors import UnknownNameError
from ptq_cli.evaluation.metrics.metric_registry import (
    LABEL_METRICS,
    PAIR_METRICS,
    REQUESTED_COMPARISONS,
    is_requested_metric,
    make_label_metric,
    require_metric,
)
from tests.each_case import each_case


def test_every_name_has_one_meaning() -> None:
    names = [*LABEL_METRICS, *REQUESTED_COMPARISONS, *PAIR_METRICS]
    assert len(set(names)) == len(names)


@each_case("name", [*LABEL_METRICS, *REQUESTED_COMPARISONS, "top17"])
def test_an_instance_keeps_its_own_counts(name: str) -> None:
    assert is_requested_metric(name)
    assert make_label_metric(name, {}) is not make_label_metric(name, {})


def test_an_argument_that_a_metric_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError, match="ignore_index"):
        make_label_metric("f1", {"ignore_index": 255})


@each_case("name", ["top0", "top", "top-1", "top1234567", "Top1", ""])
def test_an_unknown_metric_lists_the_known_and_the_nearest(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"there is no metric '{name}'") as caught:
        require_metric(name, more=["mine"])
    assert "known: top1, top5, class_accuracy" in caught.value.hint
    assert "max_abs_error, mine; or torchmetrics" in caught.value.hint

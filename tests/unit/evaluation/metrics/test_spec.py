"""Which metrics are measured, from names, definitions and limits."""

import pytest

from ptq_cli.core.errors import RecipeValueError, UnknownNameError
from ptq_cli.evaluation.metrics.spec import MetricSpec, metric_specs, split_output
from ptq_cli.recipe.sections import MetricSettings
from tests.each_case import each_case

F1 = "torchmetrics.classification:MulticlassF1Score"


@each_case(
    "text, metric, output",
    [
        ("top1", "top1", None),
        ("top1[aux]", "top1", "aux"),
        ("top1[/head/Gemm:0]", "top1", "/head/Gemm:0"),
        ("top1[a[0]]", "top1", "a[0]"),
        (F1, F1, None),
        (f"{F1}[aux]", F1, "aux"),
        ("a folder/f.py:mine[x:y]", "a folder/f.py:mine", "x:y"),
        ("odd[1].py:mine", "odd[1].py:mine", None),
    ],
)
def test_brackets_at_the_end_name_an_output(text: str, metric: str, output: str | None) -> None:
    assert split_output(text) == (metric, output)


def test_names_come_first_then_definitions_then_limits() -> None:
    defined = [MetricSettings(metric="f1[aux]", name="macro")]
    specs = metric_specs(["top5", "cosine", "top5"], defined, ["top1", "macro", "sqnr_db", "top5"])
    assert [spec.name for spec in specs] == ["top5", "macro", "top1"]
    assert specs[1] == MetricSpec(name="macro", metric="f1", output="aux")


@pytest.mark.parametrize("named", ["macro", F1, f"{F1}[aux]"])
def test_naming_a_defined_metric_means_its_definition(named: str) -> None:
    defined = [MetricSettings(metric=f"{F1}[aux]", name="macro", arguments={"average": "macro"})]
    assert metric_specs([named], defined) == (
        MetricSpec(name="macro", metric=F1, output="aux", arguments={"average": "macro"}),
    )


def test_a_limit_on_a_defined_name_measures_nothing_more() -> None:
    defined = [MetricSettings(metric="top1[aux]", name="top1")]
    assert [spec.output for spec in metric_specs([], defined, ["top1"])] == ["aux"]


def test_code_is_called_by_its_last_name() -> None:
    assert [spec.name for spec in metric_specs([F1, "f.py:mine[aux]"])] == ["MulticlassF1Score", "mine[aux]"]


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(
        RecipeValueError, match=r"two metrics have the name 'mine': a\.py:mine and b\.py:mine"
    ):
        metric_specs(["a.py:mine", "b.py:mine"])


def test_an_unknown_name_may_be_near_a_defined_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'macro'"):
        metric_specs(["marco"], [MetricSettings(metric="f1", name="macro")])


def test_a_comparison_cannot_be_defined() -> None:
    with pytest.raises(RecipeValueError, match=r"'metric\.metric' is 'sqnr_db', which is always computed"):
        metric_specs([], [MetricSettings(metric="sqnr_db")])

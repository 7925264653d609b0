"""Functions and classes of the user's own.

Which metrics are measured, from names, definitions and limits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.core.errors import EntryPointError, MetricError, RecipeValueError, UnknownNameError
from ptq_cli.evaluation.metrics.base import SampleSums
from ptq_cli.evaluation.metrics.spec import MetricSpec, metric_maker, metric_specs, split_output
from ptq_cli.recipe.sections import MetricSettings
from tests.each_case import each_case

CODE = """\
import numpy as np


def hits(output, labels):
    return output.argmax(1) == labels


def errors(output, labels, power=1):
    return np.abs(output[:, 0] - labels) ** power


errors.higher_is_better = False


def total(output, labels):
    return float(np.sum(output))


def broken(output, labels):
    raise ValueError("no such luck")


class Mean:
    higher_is_better = False

    def __init__(self, start=0.0):
        self.sum, self.count = start, 0

    def update(self, output, labels):
        self.sum += output.sum()
        self.count += len(output)

    def compute(self):
        return self.sum / self.count


class Resumable(Mean):
    def state_dict(self):
        return {"sum": np.array(self.sum), "count": np.array(self.count)}

    def load_state_dict(self, state):
        self.sum, self.count = float(state["sum"]), int(state["count"])


class Text(Mean):
    def compute(self):
        return "good"


class NoCompute:
    def update(self, output, labels): ...


NUMBER = 3
"""

OUTPUT = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
LABELS = np.array([1, 1, 1])


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return lambda name, **arguments: metric_maker(
        MetricSpec(name=name, metric=f"mine.py:{name}", output=None, arguments=arguments)
    )()


def test_a_function_gives_a_number_a_sample(make: Any) -> None:
    metric = make("hits")
    metric.update(OUTPUT, LABELS)
    assert (metric.compute(), metric.higher_is_better) == (pytest.approx(2 / 3), True)
    found = metric.resampling()
    assert isinstance(found, SampleSums) and found.rows.ravel().tolist() == [1.0, 0.0, 1.0]


def test_it_is_given_the_recipes_arguments_and_says_what_is_better(make: Any) -> None:
    metric = make("errors", power=2)
    metric.update(OUTPUT, LABELS)
    assert metric.compute() == pytest.approx(np.mean((OUTPUT[:, 0] - 1) ** 2))
    assert not metric.higher_is_better


def test_a_class_streams(make: Any) -> None:
    metric = make("Mean", start=1.0)
    metric.update(OUTPUT[:2], LABELS[:2])
    metric.update(OUTPUT[2:], LABELS[2:])
    assert metric.compute() == pytest.approx((1 + OUTPUT.sum()) / 3)
    assert (metric.higher_is_better, metric.is_resumable) == (False, False)
    assert metric.resampling() == "a class with update and compute does not tell what each sample contributes"


def test_a_class_with_a_state_goes_on(make: Any) -> None:
    begun, continued = make("Resumable"), make("Resumable")
    begun.update(OUTPUT[:2], LABELS[:2])
    assert begun.is_resumable
    continued.join([begun.state()])
    continued.update(OUTPUT[2:], LABELS[2:])
    assert continued.compute() == pytest.approx(OUTPUT.sum() / 3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("total", "total gave one number for a batch of 3 samples"),
        ("broken", "broken raised ValueError: no such luck"),
        ("Text", "Text returned ['good'], expected one number"),
        ("NoCompute", "NoCompute is a class that does not have 'compute'"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, name: str, says: str) -> None:
    def use() -> None:
        metric = make(name)
        metric.update(OUTPUT, LABELS)
        metric.compute()

    with pytest.raises(MetricError) as caught:
        use()
    assert caught.value.message == says
    assert caught.value.hint


@pytest.mark.parametrize("name", ["hits", "Mean"])
def test_samples_on_another_axis_are_refused(make: Any, name: str) -> None:
    with pytest.raises(
        MetricError, match=r"3 labels, and 5 samples in an output of shape \[5, 3, 2\]"
    ) as caught:
        make(name).update(np.zeros((5, 3, 2)), LABELS)
    assert str(caught.value.hint).endswith("--set data.batch_axis.output=1")


@pytest.mark.parametrize(
    ("name", "says"), [("hit", "did you mean 'hits'"), ("NUMBER", "is a int, expected a callable")]
)
def test_what_is_not_there_is_refused(make: Any, name: str, says: str) -> None:
    with pytest.raises(EntryPointError, match=says):
        make(name)


def test_an_argument_that_the_constructor_does_not_take(make: Any) -> None:
    with pytest.raises(
        MetricError, match=r"mine.py:Mean cannot be made with begin = 1: TypeError: .*'begin'"
    ):
        make("Mean", begin=1)


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

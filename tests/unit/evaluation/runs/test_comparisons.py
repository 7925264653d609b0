"""Which samples changed their class."""

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.runs import comparisons as module
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.model_outputs import Place
from tests.each_case import each_case


def place(size: int, first: int = 0, labels: list[int] | None = None) -> Place:
    names = tuple(f"{first + row}.png" for row in range(size))
    inputs = {"x": np.arange(size * 4, dtype=np.float32).reshape(size, 4) + 100 * first}
    return Place(Batch(inputs, np.array(labels) if labels is not None else None, names), first)


def scores(*classes: int) -> Array:
    return np.eye(3, dtype=np.float32)[list(classes)]


def test_batches_follow_one_another() -> None:
    collector = ChangeCollector()
    collector.update(scores(0, 1), scores(0, 2), place(2, labels=[0, 1]))
    collector.update(scores(2, 1), scores(1, 1), place(2, first=2, labels=[1, 1]))
    found = collector.changes(("a", "b", "c"))
    assert (found.total, found.class_names) == (2, ("a", "b", "c"))
    assert [
        (item.index, item.name, item.float_class, item.quantized_class, item.effect) for item in found.samples
    ] == [(1, "1.png", 1, 2, "lost"), (2, "2.png", 2, 1, "gained")]


def test_without_labels_a_sample_only_changes() -> None:
    collector = ChangeCollector()
    collector.update(scores(0), scores(1), place(1))
    found = collector.changes(())
    assert [item.effect for item in found.samples] == ["changed"]


@each_case("shape", [(4, 1), (4,), (4, 3, 2), (2, 3)], ids=str)
def test_an_output_that_is_not_one_of_classes_has_no_changes(shape: tuple[int, ...]) -> None:
    collector = ChangeCollector()
    collector.update(np.zeros(shape), np.ones(shape), place(4))
    collector.update(scores(0, 0, 0, 0), scores(1, 1, 1, 1), place(4))
    assert collector.changes(()) is None


def test_what_is_kept_is_bounded_and_what_is_counted_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SAMPLES", 3)
    collector = ChangeCollector()
    collector.update(scores(0, 0, 0, 0, 0), scores(1, 1, 1, 1, 1), place(5))
    found = collector.changes(())
    assert (found.total, len(found.samples)) == (5, 3)


def test_a_collector_goes_on_where_another_was_ended() -> None:
    whole, first = ChangeCollector(), ChangeCollector()
    batches = [(scores(0, 1), scores(0, 2), place(2)), (scores(2, 1), scores(1, 1), place(2, first=2))]
    for batch in batches:
        whole.update(*batch)
    first.update(*batches[0])
    second = ChangeCollector()
    second.join([first.state()])
    second.update(*batches[1])
    assert second.changes(("a",)) == whole.changes(("a",))

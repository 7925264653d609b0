"""An evaluation in any number of parts gives the bits of one, whichever the metrics and the order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.calibdata.dataset.batches import Batch, Selection, Shard
from ptq_cli.core.documents import encode
from ptq_cli.core.trust import trust_code
from ptq_cli.evaluation.metrics import base as block_sums
from ptq_cli.evaluation.metrics.base import BlockSums, Recorded
from ptq_cli.evaluation.metrics.metric_registry import LABEL_METRICS
from ptq_cli.evaluation.metrics.spec import MetricSpec
from ptq_cli.evaluation.runs.comparisons import ChangeCollector
from ptq_cli.evaluation.runs.evaluator import Evaluator, ModelOutputs
from ptq_cli.evaluation.runs.judged import judged_metrics
from ptq_cli.evaluation.runs.run_models import (
    MeasuredBatch,
    PartEvaluator,
    joined_batches,
    pack_states,
    unpack_states,
)
from tests.day import examples
from tests.torch_needed import HAS_TORCH

SCORES = ("top1", "top5", "class_accuracy", "f1", "auroc")
TORCH = ("torchmetrics.classification:MulticlassAccuracy", "torchmetrics:MeanSquaredError")
SPECS = [
    *(MetricSpec(name=name, metric=name) for name in SCORES),
    MetricSpec(name="sums", metric=TORCH[0], arguments={"num_classes": 6}),
    MetricSpec(
        name="lists", metric="torchmetrics.classification:MulticlassAUROC", arguments={"num_classes": 6}
    ),
    MetricSpec(name="iou", metric="mean_iou", output="masks"),
    MetricSpec(name="floats", metric=TORCH[1], output="values"),
    *(MetricSpec(name=name, metric=name, output="values") for name in ("mse", "mae", "r2")),
    MetricSpec(name="pairs", metric="spearman", output="scores"),
]


def test_every_metric_of_ptq_is_among_them_or_keeps_rows_alone() -> None:
    others = set(LABEL_METRICS) - {spec.metric for spec in SPECS}
    for name in others:
        metric = type(LABEL_METRICS[name]())
        assert (metric.join, metric.start_at) == (Recorded.join, Recorded.start_at), name


class Case:
    """One metric with outputs, labels and batches of its own."""

    def __init__(self, spec: MetricSpec, samples: int, batch_size: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.spec, self.samples, self.batch_size = spec, samples, batch_size
        shape = {"values": (samples, 3), "masks": (samples, 6, 2, 2)}.get(spec.output or "", (samples, 6))
        self.of_float = random.standard_normal(shape).astype(np.float32)
        self.quantized = self.of_float + 0.3 * random.standard_normal(shape).astype(np.float32)
        self.labels = {
            "values": random.standard_normal(shape).astype(np.float32),
            "masks": random.integers(0, 6, (samples, 2, 2)),
        }.get(spec.output or "", random.integers(0, 6, samples))
        if spec.metric == "spearman":
            self.labels = np.repeat(random.integers(0, 5, -(-samples // 2)).astype(np.float32), 2)[:samples]

    def batches(self, selection: Selection):
        for number, start in enumerate(range(0, self.samples, self.batch_size)):
            if number in selection:
                part = slice(start, start + self.batch_size)
                names = tuple(f"sample {index}" for index in range(self.samples)[part])
                yield (
                    Batch({"x": np.zeros(len(names))}, self.labels[part], names),
                    ModelOutputs([self.of_float[part]], [[self.quantized[part]]]),
                )

    def collector(self) -> ChangeCollector:
        return ChangeCollector()

    def make(self, watch: ChangeCollector) -> Evaluator:
        output = self.spec.output or "scores"
        with trust_code():
            return Evaluator([output], judged_metrics([self.spec], [output]), watches=[watch])

    def whole(self):
        watch = self.collector()
        evaluator = self.make(watch)
        for batch in self.batches(Selection()):
            evaluator.update(*batch)
        return self.found(evaluator, watch)

    def in_parts(self, count: int, order: list[int]):
        batches, watched = [], []
        for number in range(1, count + 1):
            watch = self.collector()
            part = PartEvaluator(lambda watch=watch: self.make(watch), Shard(number, count), self.batch_size)
            for batch in self.batches(Selection(Shard(number, count))):
                part.update(*batch)
            # As a file holds them.
            states = unpack_states(*pack_states([item.state for item in part.batches]), len(part.batches))
            batches += [
                MeasuredBatch(item.number, item.samples, state)
                for item, state in zip(part.batches, states, strict=True)
            ]
            watched.append(part.watches_state())
        watch = self.collector()
        shuffled = [
            batches[place] for place in sorted(range(len(batches)), key=lambda p: order[p % len(order)])
        ]
        return self.found(joined_batches(lambda: self.make(watch), shuffled, watched, self.batch_size), watch)

    def found(self, evaluator: Evaluator, watch: ChangeCollector):
        return encode(evaluator.evaluations()), encode(watch.changes(()))


@examples(40)
@given(
    st.sampled_from(SPECS),
    st.integers(6, 60),
    st.integers(1, 9),
    st.integers(2, 5),
    st.permutations(range(6)),
    st.integers(0, 9),
)
def test_parts_make_the_whole(spec, samples, batch_size, count, order, seed) -> None:
    if "torchmetrics" in spec.metric and not HAS_TORCH:
        return
    if spec.metric == "spearman":
        samples, batch_size = 2 * samples, 2 * batch_size
    case = Case(spec, samples, batch_size, seed)
    assert case.in_parts(count, order) == case.whole()


def test_parts_make_the_whole_of_more_samples_than_there_are_blocks(monkeypatch) -> None:
    monkeypatch.setattr("ptq_cli.evaluation.metrics.value_errors._MOST_BLOCKS", 8)
    case = Case(SPECS[0], 203, 5, seed=1)
    assert case.in_parts(3, [1, 0]) == case.whole()


@examples(60)
@given(st.integers(1, 90), st.integers(1, 12), st.lists(st.integers(1, 89), max_size=6), st.integers(1, 4))
def test_sums_of_blocks_do_not_depend_on_batches(samples, most, cuts, widths) -> None:
    random = np.random.default_rng(samples)
    rows = random.standard_normal((samples, 2, widths)) * 10.0 ** random.integers(-8, 8, (samples, 1, 1))
    one, cut, parts = BlockSums(most), BlockSums(most), []
    one.add(rows)
    for index, part in enumerate(np.split(rows, sorted({cut for cut in cuts if cut < samples}))):
        cut.add(part)
        alone = BlockSums(most)
        alone.start_at(len(cut) - len(part))
        alone.add(part)
        parts.insert(index % 2, alone.state())
    joined = block_sums.BlockSums(most)
    joined.join(parts)
    assert one.blocks().tobytes() == cut.blocks().tobytes() == joined.blocks().tobytes()
    np.testing.assert_allclose(one.blocks().sum(axis=0), rows.sum(axis=0), rtol=1e-9, atol=1e-6)

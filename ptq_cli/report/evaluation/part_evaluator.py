"""The batches of one shard, each measured by itself, from which the parts of a set become the whole."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.selection import Shard
from ptq_cli.core.errors import MergeError, MetricError
from ptq_cli.report.evaluation.evaluator import Evaluator, ModelOutputs
from ptq_cli.report.metrics.recorder import State

ALL_AT_ONCE = "evaluate all samples in one process, or with --batch-size 1"


@dataclass(frozen=True)
class MeasuredBatch:
    """What the metrics hold after one batch alone.

    Attributes:
        number: the place of the batch in the whole set, from 0.
        samples: how many it has.
        state: of the metrics, as ``Evaluator.metrics_state`` gives it.
    """

    number: int
    samples: int
    state: State


class PartEvaluator:
    """Measures the batches of a shard.

    A sum of all of them would depend on the order in which shards are added up. So each batch is measured by
    metrics of its own, and these are joined in the order of the set: what comes out is what one process gives
    that sees all batches, to the last bit.

    Args:
        make: makes an evaluator; all of them have the same watches.
        shard: which of the batches come.
        batch_size: samples a batch; the last of the set may have fewer.

    Raises:
        MetricError: a metric cannot be measured in parts.
    """

    def __init__(self, make: Callable[[], Evaluator], shard: Shard, batch_size: int) -> None:
        self.samples = 0
        self.batches: list[MeasuredBatch] = []
        self._make, self._shard, self._batch_size = make, shard, batch_size
        self._first = make()
        for name, reason in self._first.indivisible.items():
            raise MetricError(
                f"{name} cannot be measured in parts: {reason}",
                hint="leave the metric out, or evaluate all samples in one process",
            )

    def update(self, batch: Batch, outputs: ModelOutputs) -> None:
        """Measure one batch.

        Raises:
            LabelError: a metric needs labels and there are none, or they do not fit.
            MetricError: outputs do not fit one another or a metric, or hold NaN or Inf.
            MergeError: the batch before was not full, so that the place of this one in the set is not known.
        """
        if self.batches and self.batches[-1].samples != self._batch_size:
            raise _not_full(self.batches[-1], self._batch_size)
        number = len(self.batches) * self._shard.count + self._shard.number - 1
        evaluator = self._make()
        evaluator.start_at(number * self._batch_size)
        evaluator.update(batch, outputs)
        self.samples += batch.size
        if evaluator.is_refused:
            raise evaluator.refusal(self.samples)
        self.batches.append(MeasuredBatch(number, batch.size, evaluator.metrics_state()))

    def watches_state(self) -> State:
        """Return what the watches have seen."""
        return self._first.watches_state()

    def resume(self, batches: Sequence[MeasuredBatch], watched: State) -> None:
        """Go on after these batches.

        Raises:
            ValueError, ReportError: what the watches have seen is damaged.
        """
        self.batches, self.samples = list(batches), sum(batch.samples for batch in batches)
        self._first.join((), [watched], samples=self.samples)


def joined_batches(
    make: Callable[[], Evaluator],
    batches: Iterable[MeasuredBatch],
    watched: Sequence[State],
    batch_size: int,
) -> Evaluator:
    """Return an evaluator that has seen all batches of a set.

    Args:
        make: makes one that has seen none.
        batches: all of them, in any order.
        watched: what the watches of each part have seen.
        batch_size: samples a batch; the last one may have fewer.

    Raises:
        MergeError: another batch than the last one was not full, or one is missing.
        MetricError: the parts do not fit each other.
        ValueError, ReportError: a state is damaged.
    """
    ordered = sorted(batches, key=lambda batch: batch.number)
    for place, batch in enumerate(ordered):
        if batch.number != place:
            raise ValueError(f"batch {place} is missing")
        if batch.samples != batch_size and batch is not ordered[-1]:
            raise _not_full(batch, batch_size)
    evaluator = make()
    evaluator.join(
        [batch.state for batch in ordered], watched, samples=sum(batch.samples for batch in ordered)
    )
    return evaluator


def _not_full(batch: MeasuredBatch, batch_size: int) -> MergeError:
    return MergeError(
        f"batch {batch.number + 1} of the data has {batch.samples} of {batch_size} samples, so a shard "
        "cannot know which samples follow",
        hint=f"the shapes of the data's samples differ: {ALL_AT_ONCE}",
    )

"""All models on the same batches, once, and every metric of the way."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.core.tensors import Array
from ptq_cli.core.work.progress import Progress, ProgressCallback, silent
from ptq_cli.report.evaluation.evaluator import ModelOutputs

Run = Callable[[dict[str, Array]], Sequence[Array]]
"""Inputs by name to outputs in the order of the model's output names."""


@dataclass(frozen=True)
class Runs:
    """The models: the float one, the quantized ones, and the PyTorch one where it is evaluated too."""

    of_float: Run
    quantized: tuple[Run, ...]
    pytorch: Run | None = None


class Fed(Protocol):
    """What is fed with the outputs of all models, such as an ``Evaluator``."""

    samples: int
    """How many it has been fed with."""

    def update(self, batch: Batch, outputs: ModelOutputs) -> None:
        """Count one batch."""
        ...


def run_evaluator(
    evaluator: Fed,
    runs: Runs,
    batches: Iterable[Batch],
    *,
    total: int | None = None,
    progress: ProgressCallback = silent,
    after_batch: Callable[[], None] | None = None,
) -> None:
    """Feed the outputs of all models to an evaluator, one batch at a time; the float model runs once for all.

    Memory holds one batch, and what each sample adds to a metric: see ``SampleSums``. The size of the batches
    changes no value, as long as the models' outputs do not depend on it.

    Args:
        evaluator: it may have seen samples before; these are counted in the progress.
        runs: the models.
        batches: what is left of the evaluation set.
        total: number of samples of the whole set, or None if that is not known.
        progress: called after each batch.
        after_batch: called after each batch, such as to write a checkpoint.

    Raises:
        LabelError: a metric needs labels and a batch has none, or a label is outside the classes.
        MetricError: an output holds NaN or Inf, or does not fit a metric or the other model's output.

    Example:
        >>> import numpy as np
        >>> from ptq_cli.report.evaluation.evaluator import Evaluator
        >>> from ptq_cli.report.evaluation.judged_metrics import judged_metrics
        >>> from ptq_cli.report.metrics.spec import MetricSpec
        >>> evaluator = Evaluator(["y"], judged_metrics([MetricSpec(name="mse", metric="mse")], ["y"]))
        >>> batch = Batch({"x": np.ones(2)}, labels=np.ones(2), names=("a", "b"))
        >>> run_evaluator(evaluator, Runs(lambda x: [x["x"]], (lambda x: [2 * x["x"]],)), [batch])
        >>> evaluator.evaluations()[0].measurements[0].drop
        1.0
    """
    for batch in batches:
        outputs = ModelOutputs(
            runs.of_float(batch.inputs),
            [run(batch.inputs) for run in runs.quantized],
            runs.pytorch(batch.inputs) if runs.pytorch is not None else None,
        )
        evaluator.update(batch, outputs)
        progress(Progress("evaluate", evaluator.samples, total))
        if after_batch is not None:
            after_batch()

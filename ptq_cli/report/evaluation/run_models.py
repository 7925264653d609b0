"""All models on the same batches, once, and every metric of the way."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.report.evaluation.evaluator import Evaluation, Evaluator, ModelOutputs, judged_metrics
from ptq_cli.report.metrics.spec import metric_specs

__all__ = ["AfterBatch", "Evaluation", "Run", "Runs", "evaluate_models", "run_evaluator"]

Run = Callable[[dict[str, Array]], Sequence[Array]]
"""Inputs by name to outputs in the order of the model's output names."""


@dataclass(frozen=True)
class Runs:
    """The models: the float one, the quantized ones, and the PyTorch one where it is evaluated too."""

    of_float: Run
    quantized: tuple[Run, ...]
    pytorch: Run | None = None


class AfterBatch(Protocol):
    """What is called after each batch, such as what writes checkpoints."""

    def after_batch(self, evaluator: Evaluator) -> None:
        """Write a checkpoint if one is due."""
        ...


def evaluate_models(
    float_run: Run,
    quantized_run: Run,
    batches: Iterable[Batch],
    *,
    output_names: Sequence[str],
    metrics: Sequence[str],
    total: int | None = None,
    progress: ProgressCallback = silent,
) -> Evaluation:
    """Run both models over ``batches`` once and measure.

    Metrics of each model read the first output, or the one that they name in brackets. Comparisons are made
    for every output: under the plain name for the first, as ``sqnr_db[name]`` for each further one; a
    comparison that has no meaning for an output, such as ``top1_agreement`` of an embedding's feature map, is
    not reported for it. Memory holds one batch, and what each sample adds to a metric: see ``SampleSums``.

    Args:
        float_run: the float model.
        quantized_run: the quantized model.
        batches: the evaluation set; labels only where a metric needs them.
        output_names: names of the outputs, the same for both models.
        metrics: names of the metrics of each model; label-free ones are always computed.
        total: number of samples, for the progress, or None if that is not known.
        progress: called after each batch.

    Shapes:
        the output that a metric reads is [N, classes] for classes, see ``Targets``; labels are [N].

    Edge case:
        The size of the batches changes no value, as long as the models' outputs do not depend on it.

    Raises:
        UnknownNameError: a metric does not exist.
        LabelError: a metric needs labels and a batch has none, or a label is outside the classes.
        MetricError: an output holds NaN or Inf, or does not fit a metric or the other model's output.
        EmptyDataError: there is no sample.

    Example:
        >>> import numpy as np
        >>> batch = Batch({"x": np.eye(2)}, labels=np.array([0, 0]), names=("a", "b"))
        >>> result = evaluate_models(
        ...     lambda inputs: [inputs["x"]], lambda inputs: [inputs["x"][::-1]], [batch],
        ...     output_names=["scores"], metrics=["top1"],
        ... )
        >>> result.samples, result.measurements[0].name, result.measurements[0].drop
        (2, 'top1', 0.0)
        >>> {m.name: m.quantized_value for m in result.measurements}["top1_agreement"]
        0.0
    """
    evaluator = Evaluator(output_names, judged_metrics(metric_specs(metrics), output_names))
    run_evaluator(evaluator, Runs(float_run, (quantized_run,)), batches, total=total, progress=progress)
    return evaluator.evaluations()[0]


def run_evaluator(
    evaluator: Evaluator,
    runs: Runs,
    batches: Iterable[Batch],
    *,
    total: int | None = None,
    progress: ProgressCallback = silent,
    checkpoints: AfterBatch | None = None,
) -> None:
    """Feed the outputs of all models to an evaluator, one batch at a time; the float model runs once for all.

    Args:
        evaluator: it may have seen samples before; these are counted in the progress.
        runs: the models.
        batches: what is left of the evaluation set.
        total: number of samples of the whole set, or None if that is not known.
        progress: called after each batch.
        checkpoints: asked after each batch.

    Raises:
        LabelError, MetricError: as ``evaluate_models``.

    Example:
        >>> import numpy as np
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
        if checkpoints is not None:
            checkpoints.after_batch(evaluator)

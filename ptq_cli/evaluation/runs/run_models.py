"""All models run on the same batches, once, and their outputs fed to an evaluator."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.free_states import FreeStates, require_steps
from ptq_cli.evaluation.runs.evaluator import Evaluator, ModelOutputs
from ptq_cli.evaluation.runs.parts import PartEvaluator
from ptq_cli.evaluation.runs.sample_axes import Axis, turned

Run = Callable[[dict[str, Array]], Sequence[Array]]
"""Inputs by name to outputs in the order of the model's output names."""


@dataclass(frozen=True)
class Runs:
    """The models: the float one, the quantized ones, and the PyTorch one where it is evaluated too."""

    of_float: Run
    quantized: tuple[Run, ...]
    pytorch: Run | None = None

    def of(self, batch: Batch) -> ModelOutputs:
        """Each model's outputs of a batch."""
        return ModelOutputs(
            self.of_float(batch.inputs),
            [run(batch.inputs) for run in self.quantized],
            self.pytorch(batch.inputs) if self.pytorch is not None else None,
        )


@dataclass(frozen=True)
class StreamRuns(Runs):
    """Models of which the quantized ones run on their own states, and then on the float model's.

    Attributes:
        own: the states of each quantized model.
        axes: where the samples of each output are; what is fed back stays as the model has it.
    """

    own: tuple[FreeStates, ...] = ()
    axes: tuple[Axis, ...] = ()

    def of(self, batch: Batch) -> ModelOutputs:
        """Each model's outputs of a step."""
        step, free = require_steps(batch), []
        for run, states in zip(self.quantized, self.own, strict=True):
            outputs = run(states.inputs(step))
            states.keep(step, outputs)
            free.append(turned(outputs, self.axes))
        forced = [turned(run(step.inputs), self.axes) for run in self.quantized]
        return ModelOutputs(turned(self.of_float(step.inputs), self.axes), [*free, *forced])


def run_evaluator(
    evaluator: Evaluator | PartEvaluator,
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

    The evaluator may have seen samples before, which count in the progress: ``batches`` are what is left of
    the set, ``total`` is the number of samples of all of it.
    """
    for batch in batches:
        evaluator.update(batch, runs.of(batch))
        progress(Progress("evaluate", evaluator.samples, total))
        if after_batch is not None and batch.completes:
            after_batch()


def samples_first(run: Run, axes: Sequence[Axis]) -> Run:
    """Function that runs a model and puts the samples of its outputs on axis 0."""
    if all(axis in (0, None) for axis in axes):
        return run
    return lambda inputs: turned(run(inputs), axes)

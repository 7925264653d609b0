"""What a run of recovery knows: the model, the machine, and samples that teach and that judge."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, count_samples, fixed_batch_size
from ptq_cli.calibdata.dataset.batches import Batch, checked, cut
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibration.subject import calibrated_part
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.core.errors import PtqError, RecoveryError, StaleCalibrationError
from ptq_cli.core.formats import BYTE
from ptq_cli.core.process import interrupts_as_requests
from ptq_cli.core.progress import Progress, ProgressCallback, RunProgress
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.recipe.check import are_plain, has_plain_weights
from ptq_cli.recipe.declaration import AUTO, DYNAMIC
from ptq_cli.recipe.recovery_rungs import exporting_rungs, mode_of, recovery_rungs
from ptq_cli.recipe.sections import ACCURACY, AmaxSettings
from ptq_cli.recover.output_noise import NoiseJudge, Outputs, PieceInputs, model_sqnr
from ptq_cli.recover.range_effects import KnownCosts, Trials
from ptq_cli.runtime.machine import Machine
from ptq_cli.setup.resolve import Resolved, no_data, open_data
from ptq_cli.setup.served_inputs import with_states

_MOST_SAMPLES = 512  # more cost time, and gave 0.1 dB; see docs/recovery.md
_JUDGED = 3 / 8  # least share of the samples that judge whether a model as a whole is better
_SET_ASIDE = 8  # every eighth sample decides
_FEW = 4  # samples of a piece that cannot be divided by taking rows
_PIECE = 32  # samples that run together: a constant, so that results do not depend on the batch size
MEASURED_ON, TOGETHER = 16, 4  # samples on which the best candidates are measured, and how many run together
# Multiply-accumulates that candidates may take. A larger model has fewer samples; where one is too much,
# only ``max`` for all tensors is tried.
MOST_WORK = 2e12

Pieces = Iterator[tuple[PieceInputs, bool]]
Build = Callable[[Placement], tuple[ir.Model, Plan]]  # makes the quantized graph of a placement, and its plan


@dataclass(frozen=True, kw_only=True)
class RecoverySamples:
    """Samples to learn from, and to judge by.

    Attributes:
        fit, decide: the model's inputs, in pieces of some samples each; no sample is in both.
    """

    fit: Sequence[Mapping[str, Array]]
    decide: Sequence[Mapping[str, Array]]

    @property
    def pieces(self) -> list[Mapping[str, Array]]:
        """All of them, those held out last."""
        return [*self.fit, *self.decide]

    @property
    def judge(self) -> list[Mapping[str, Array]]:
        """The last of them, which judge whether the model as a whole is better."""
        return self.pieces[self.first_judged :]

    @property
    def first_judged(self) -> int:
        """The first of the last pieces that have three eighths of the samples.

        Of fewer one or two make most of the noise; that what was learned fits its own samples alone is rarer.

        Example:
            >>> import numpy as np
            >>> one, part = {"x": np.zeros((28, 1))}, {"x": np.zeros((4, 1))}
            >>> RecoverySamples(fit=[one] * 4, decide=[part] * 4).first_judged
            2
        """
        sizes = [samples_in(piece) for piece in self.pieces]
        enough = _JUDGED * sum(sizes)
        fits = range(len(self.fit) + 1)
        return max(first for first in fits if not first or sum(sizes[first:]) >= enough)


def samples_in(piece: Mapping[str, Array]) -> int:
    """Number of samples of a piece; 1 if none of its arrays has an axis."""
    return max((len(array) for array in piece.values() if array.ndim), default=1)


@dataclass(frozen=True, kw_only=True)
class RecoveryData:
    """Calibration data that a recovery may use.

    Attributes:
        dataset: whose arrays have the names of the model's inputs.
        known_costs: what ranges have cost the outputs of the same float model on these data.
        known_outputs: what the float model has made of some of these data, by the rung that chose them.
    """

    dataset: Dataset
    inputs: tuple[TensorSpec, ...]
    allow_nonfinite: bool
    known_costs: KnownCosts = field(default_factory=dict)
    known_outputs: dict[str, Outputs] = field(default_factory=dict)

    @cached_property
    def samples(self) -> tuple[RecoverySamples, int, int]:
        """The samples in pieces, and how many there are to learn from and to judge by."""
        return recovery_samples(self)

    @property
    def one_size(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each input."""
        piece = few(self.samples[0].decide, self.inputs, 1)[0]
        return {name: array.shape for name, array in piece.items()}

    def judge(self, float_model: StoredModel, threads: int) -> NoiseJudge:
        """Judge of quantized models: SQNR of the outputs on the samples that judge, in dB.

        The number of threads does not change it.
        """
        # In pieces of a few, those held out first, a model that is far worse than another soon shows it.
        pieces = few(self.samples[0].judge[::-1], self.inputs, self.samples[2])
        return model_sqnr(float_model, pieces, threads=threads, known=self.known_outputs, name="judge")


def escalates(resolved: Resolved) -> bool:
    """Whether a model whose outputs lose too much is improved although no rung was named.

    Not if the recipe says itself how ranges and layers are decided.
    """
    recipe, target = resolved.recipe, resolved.target
    is_dynamic = has_plain_weights(recipe.weights) and mode_of(recipe.activations) == DYNAMIC
    return (
        AUTO in recipe.recovery.rungs
        and not recovery_rungs(recipe.recovery)
        and (are_plain(recipe.weights, recipe.activations) or is_dynamic)
        and (recipe.weights.bits is None or recipe.weights.bits <= BYTE)
        and recipe.amax == AmaxSettings()
        and not recipe.calibration.allow_nonfinite
        and all(item.quantize is not None for item in recipe.override)
        and recipe.export.prefer in (AUTO, ACCURACY)
        and target.runtime == ONNXRUNTIME
    )


def open_recovery_data(
    resolved: Resolved,
    calibration: Calibration,
    graph: ir.Model,
    stored: StoredModel,
    progress: ProgressCallback,
) -> RecoveryData | None:
    """Open the data of an earlier calibration again; None if no rung of recovery needs them.

    Edge case:
        Data that only ``escalates`` would read may be gone, or may have changed: then nothing is improved,
        and a note says so.
    """
    if not exporting_rungs(resolved.recipe.recovery):
        if not escalates(resolved) or resolved.recipe.calibration.data is None:
            return None
        try:
            return _opened_again(resolved, calibration, graph, stored)
        except PtqError as error:
            note = f"the outputs were not compared with the float model's: {error.message}"
            progress(Progress(RECOVER_STAGE, 0, None, note))
            return None
    return _opened_again(resolved, calibration, graph, stored)


def _opened_again(
    resolved: Resolved, calibration: Calibration, graph: ir.Model, stored: StoredModel
) -> RecoveryData | None:
    recipe = resolved.recipe
    dataset = open_data(recipe.calibration, resolved.reading, "calibration", "--data")
    if dataset.digest() != calibration.provenance.data:
        raise StaleCalibrationError(
            f"'{dataset.source}' has changed since it was calibrated, and --recover reads it again",
            hint="run ptq calibrate again, or leave out --recover",
        )
    dataset = with_states(dataset, recipe.data, graph, stored)
    dataset = calibrated_part(dataset, recipe.calibration, input_specs(graph))
    return recovery_data(resolved, dataset, input_specs(graph))


def recovery_data(
    resolved: Resolved, dataset: Dataset | None, inputs: tuple[TensorSpec, ...]
) -> RecoveryData | None:
    """Return the data of a calibration for recovery; None if no rung of recovery is asked for.

    And for ``escalates``, if there are enough.
    """
    is_asked = bool(exporting_rungs(resolved.recipe.recovery))
    if not is_asked and (dataset is None or not escalates(resolved)):
        return None
    if dataset is None:
        raise no_data("calibration", "--data")
    bound = bind_inputs(dataset, inputs)
    fixed = fixed_batch_size(inputs)
    if bound.count is not None and bound.count < 2 * (fixed or 1):
        if not is_asked:
            return None
        raise _too_few(bound.count // (fixed or 1), fixed)
    return RecoveryData(
        dataset=bound,
        inputs=inputs,
        allow_nonfinite=resolved.recipe.calibration.allow_nonfinite,
    )


def recovery_samples(data: RecoveryData) -> tuple[RecoverySamples, int, int]:
    """Return the samples in pieces, and how many there are to learn from and to judge by.

    Every eighth sample is held out, whichever the batch size; of a model with a fixed batch size every
    eighth batch. Of fewer than eight the last is.
    """
    fixed = fixed_batch_size(data.inputs)
    pieces = list(_fixed(data, fixed) if fixed else _free(data))
    if pieces and not any(decides for _, decides in pieces):
        pieces = _last_aside(pieces, data.inputs)
    fit = [piece for piece, decides in pieces if not decides]
    decide = [piece for piece, decides in pieces if decides]
    found = _cut_for_judging(RecoverySamples(fit=fit, decide=decide), data.inputs)
    learned, judged = (
        sum(count_samples(piece, data.inputs) for piece in part) for part in (found.fit, found.judge)
    )
    if not fit or not decide:
        raise _too_few(len(pieces) if fixed else max(learned, judged), fixed)
    return found, learned, judged


def _cut_for_judging(samples: RecoverySamples, inputs: Sequence[TensorSpec]) -> RecoverySamples:
    """Return the samples with one piece in two where those that judge would begin inside.

    Outputs are held of the pieces that judge, and logits of a whole one may be a gigabyte.
    """
    fit, first = samples.fit, samples.first_judged
    judged, total = (sum(map(samples_in, pieces)) for pieces in (samples.judge, samples.pieces))
    spare = judged - math.ceil(_JUDGED * total)
    if first == len(fit) or not spare or not _divides(inputs):
        return samples
    parts = [_rows(fit[first], slice(spare)), _rows(fit[first], slice(spare, None))]
    return replace(samples, fit=[*fit[:first], *parts, *fit[first + 1 :]])


def _too_few(found: int, fixed: int | None) -> RecoveryError:
    unit = f"batches of {fixed}" if fixed and fixed > 1 else "samples"
    return RecoveryError(
        f"--recover needs at least 2 {unit} of calibration data, found {found}",
        hint="pass more data with --data or --samples, or leave out --recover",
    )


def _fixed(data: RecoveryData, size: int) -> Pieces:
    for number, (batch, _) in enumerate(_batches(data, size)):
        yield dict(batch.inputs), _decides(number)


def _decides(number: int) -> bool:
    return number % _SET_ASIDE == _SET_ASIDE - 1


def _free(data: RecoveryData) -> Pieces:
    apart = 0
    for batch, first in _batches(data, _PIECE):
        if batch.axes:  # Samples lie along other axes, or share an array: whole pieces are set aside.
            for start in range(0, batch.size, _FEW):
                yield dict(cut(batch, start, min(start + _FEW, batch.size)).inputs), _decides(apart)
                apart += 1
            continue
        piece = batch.inputs
        aside = (first + np.arange(batch.size)) % _SET_ASIDE == _SET_ASIDE - 1
        for chosen, decides in ((~aside, False), (aside, True)):
            if chosen.any():
                yield {name: array[chosen] for name, array in piece.items()}, decides


def _batches(data: RecoveryData, size: int) -> Iterator[tuple[Batch, int]]:
    """Yield each batch, copied since a source may reuse arrays, and the number of its first sample."""
    first = 0
    batches = data.dataset.batches(size)
    with closing(batches if data.allow_nonfinite else checked(batches)) as given:
        for batch in given:
            yield replace(batch, inputs={name: array.copy() for name, array in batch.inputs.items()}), first
            first += batch.size
            if first >= _MOST_SAMPLES:
                return


def _last_aside(
    pieces: list[tuple[PieceInputs, bool]], inputs: Sequence[TensorSpec]
) -> list[tuple[PieceInputs, bool]]:
    *others, (last, _) = pieces
    if not _divides(inputs) or count_samples(last, inputs) < 2:
        return [*others, (last, True)]
    return [*others, (_rows(last, slice(-1)), False), (_rows(last, slice(-1, None)), True)]


def _rows(piece: PieceInputs, own: slice) -> dict[str, Array]:
    return {name: array[own] for name, array in piece.items()}


def _divides(inputs: Sequence[TensorSpec]) -> bool:
    """Whether pieces can be cut along the first axis of every input."""
    return not fixed_batch_size(inputs) and all(spec.samples_axis == 0 for spec in inputs)


def sample_work(model: ir.Model, piece: PieceInputs, inputs: Sequence[TensorSpec]) -> float:
    """Return the multiply-accumulates of a model for one sample."""
    found = multiply_accumulates(model, {name: array.shape for name, array in piece.items()})
    return found.total / count_samples(piece, inputs)


def few(
    pieces: Sequence[PieceInputs], inputs: Sequence[TensorSpec], most: int = MEASURED_ON
) -> list[dict[str, Array]]:
    """Return the first samples, in pieces of which all tensors between layers fit into memory.

    A piece of a fixed batch, or of which samples lie along other axes, is taken as it is.

    Example:
        >>> import numpy as np
        >>> x, fixed = (TensorSpec("x", np.dtype("f8"), (size, 3)) for size in (None, 28))
        >>> [len(piece["x"]) for piece in few([{"x": np.zeros((28, 3))}], [x])]
        [4, 4, 4, 4]
        >>> [len(piece["x"]) for piece in few([{"x": np.zeros((28, 3))}], [x], 1)]
        [1]
        >>> [len(piece["x"]) for piece in few([{"x": np.zeros((28, 3))}], [fixed], 1)]
        [28]
    """
    found: list[dict[str, Array]] = []
    # Two pieces at least: what is far behind on the first is not measured on the second.
    together = min(TOGETHER, -(-most // 2))
    for piece in pieces:
        size = count_samples(piece, inputs)
        divides = size > together and _divides(inputs)
        for start in range(0, size, together) if divides else (0,):
            found.append(_rows(piece, slice(start, start + together)) if divides else dict(piece))
            if sum(count_samples(item, inputs) for item in found) >= most:
                return found
    return found


def one_sample(piece: dict[str, Array], inputs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return the first sample of a piece, if it has others; which tensors are quiet shows on that.

    Example:
        >>> import numpy as np
        >>> x = TensorSpec("x", np.dtype("f8"), (None, 3))
        >>> [[len(first["x"]) for first in one_sample({"x": np.zeros((n, 3))}, [x])] for n in (4, 1)]
        [[1], []]
    """
    if not _divides(inputs) or count_samples(piece, inputs) < 2:
        return []
    return [_rows(piece, slice(1))]


RECOVER_STAGE = "recover"
SPARE_DB = 2.0  # that the worst output of unlike samples may have less


class Interruptions:
    """Whether Ctrl-C ended the recovery with what it had found; without ``asked``, Ctrl-C is an error."""

    def __init__(self, progress: ProgressCallback, *, asked: bool) -> None:
        self.asked, self._progress = asked, progress
        self.stopped = False

    @contextmanager
    def rung(self, then: str = "") -> Iterator[Callable[[], bool]]:
        """Yield what tells whether a rung has to end, and tell it at the end, with what happens then."""
        if not self.asked:
            yield lambda: False
            return
        with interrupts_as_requests() as stop:
            yield stop
            self.stopped = stop()
        if self.stopped:
            note = f"Ctrl-C ended the recovery; what was found until then is kept if it helps{then}"
            self._progress(Progress(RECOVER_STAGE, 0, None, note))


@dataclass(frozen=True, kw_only=True)
class RecoveryContext:
    """What a run of recovery knows of the model, its data and the machine.

    Attributes:
        float_model: that is quantized.
        data: to learn from, and to judge by.
        folder: where tensors wait that do not fit into memory.
        checkpoint: the file that an interrupted recovery continues from; None for none.
        every: seconds between two checkpoints.
        goal_db: SQNR of the worst output that is enough.
        weights_first: weights of few bits are chosen again before anything else is done for the goal.
    """

    float_model: StoredModel
    calibration: Calibration
    data: RecoveryData
    target: Target
    machine: Machine
    folder: Path
    progress: ProgressCallback
    interruptions: Interruptions
    checkpoint: Path | None = None
    every: float = 0.0
    goal_db: float = 20.0
    weights_first: bool = False

    @property
    def wanted_db(self) -> float:
        """What is looked for on some samples, so that others have the goal."""
        return self.goal_db + SPARE_DB

    def tell(self, note: str) -> None:
        """Say something of the recovery."""
        self.progress(Progress(RECOVER_STAGE, 0, None, note))

    def judge(self) -> NoiseJudge:
        """What tells the SQNR of a quantized model's outputs on the samples that judge, in dB."""
        return self.data.judge(self.float_model, self.machine.threads)

    def trials(self, stage: str, stop: Callable[[], bool]) -> Trials:
        """How the float model is run with tensors on grids; ``stage`` is what progress calls it."""

        def done(count: int, total: int) -> None:
            self.progress(RunProgress(stage, count, total, number=count, runs=total))

        return Trials(threads=self.machine.threads, stop=stop, done=done)

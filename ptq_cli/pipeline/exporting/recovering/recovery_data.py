"""The samples that accuracy is recovered from: some to learn from, the others to decide by."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.dataset.batch import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.rebatch import cut
from ptq_cli.collectors.artifact.calibration_file import Calibration
from ptq_cli.core.errors import RecoveryError, StaleCalibrationError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.pipeline.calibration.measure import calibrated_part, checked
from ptq_cli.pipeline.run.reading import no_data, open_data
from ptq_cli.pipeline.run.resolve import Resolved
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.recovery_rungs import RANGES, WEIGHED, exporting_rungs
from ptq_cli.recovery.moments.moments_file import Moments, load_moments
from ptq_cli.recovery.range_effects import KnownCosts
from ptq_cli.recovery.samples.recovery_samples import RecoverySamples

MOST_SAMPLES = 512
"""More cost time, and gave 0.1 dB; see docs/recovery.md."""
SET_ASIDE = 8
"""Every eighth sample decides."""
FEW = 4
"""Samples of a piece that cannot be divided by taking rows."""
PIECE = 32
"""Samples that run together. A constant, so that the result does not depend on the batch size."""


@dataclass(frozen=True, kw_only=True)
class RecoveryData:
    """Calibration data that a recovery may use.

    Attributes:
        dataset: whose arrays have the names of the model's inputs.
        inputs: of the model.
        allow_nonfinite: NaN and Inf in the data are not refused.
        batch_size: samples that run together where the sums do not depend on it.
        known_costs: what ranges have cost the outputs of the same float model on these data.
    """

    dataset: Dataset
    inputs: tuple[TensorSpec, ...]
    allow_nonfinite: bool
    batch_size: int
    known_costs: KnownCosts = field(default_factory=dict)


def open_moments(resolved: Resolved, run: RunDirectory) -> Moments | None:
    """Return the moments of a run, if a rung that is asked for needs them and they are there.

    Raises:
        MomentsFileError: they are damaged.
    """
    rungs = exporting_rungs(resolved.recipe.recovery)
    # With other ranges what layers read are other integers.
    wanted = WEIGHED in rungs and RANGES not in rungs
    return load_moments(run.moments) if wanted and run.moments.is_file() else None


def open_recovery_data(
    resolved: Resolved, calibration: Calibration, graph: ir.Model, moments: Moments | None
) -> RecoveryData | None:
    """Open the data of an earlier calibration again; None if no rung of recovery needs them.

    Args:
        resolved: the recipe.
        calibration: the earlier one.
        graph: of the float model.
        moments: of the run, if there are any: with them one of the rungs needs no data.

    Raises:
        EmptyDataError: the recipe names none.
        StaleCalibrationError: it is not what was calibrated on.
        RecoveryError: there are too few samples.
        PtqError: it cannot be opened, or does not fit the model.
    """
    recipe = resolved.recipe
    rungs = exporting_rungs(recipe.recovery)
    if not rungs or (moments is not None and rungs == (WEIGHED,)):
        return None
    inputs = input_specs(graph)
    return recovery_data(resolved, calibrated_data(resolved, calibration, inputs, "--recover"), inputs)


def calibrated_data(
    resolved: Resolved, calibration: Calibration, inputs: tuple[TensorSpec, ...], option: str
) -> Dataset:
    """Open the data of an earlier calibration again.

    Args:
        resolved: the recipe.
        calibration: the earlier one.
        inputs: of the model.
        option: that needs them.

    Raises:
        EmptyDataError: the recipe names none.
        StaleCalibrationError: it is not what was calibrated on.
        PtqError: it cannot be opened.
    """
    recipe = resolved.recipe
    dataset = open_data(recipe.calibration, resolved.reading, "calibration", "--data")
    if dataset.digest() != calibration.provenance.data:
        raise StaleCalibrationError(
            f"'{dataset.source}' has changed since it was calibrated, and {option} reads it again",
            hint=f"run ptq calibrate again, or leave out {option}",
        )
    return calibrated_part(dataset, recipe.calibration, inputs)


def recovery_data(
    resolved: Resolved, dataset: Dataset | None, inputs: tuple[TensorSpec, ...]
) -> RecoveryData | None:
    """Return the data of a calibration for recovery; None if no rung of recovery is asked for.

    Raises:
        EmptyDataError: a rung is asked for, and there are no data.
        RecoveryError: there are too few samples, as far as that is known before they are read.
        PtqError: the data do not fit the model.
    """
    if not exporting_rungs(resolved.recipe.recovery):
        return None
    if dataset is None:
        raise no_data("calibration", "--data")
    bound = bind_inputs(dataset, inputs)
    fixed = fixed_batch_size(inputs)
    if bound.count is not None and bound.count < 2 * (fixed or 1):
        raise _too_few(bound.count // (fixed or 1), fixed)
    return RecoveryData(
        dataset=bound,
        inputs=inputs,
        allow_nonfinite=resolved.recipe.calibration.allow_nonfinite,
        batch_size=fixed or resolved.recipe.calibration.batch_size,
    )


def recovery_samples(data: RecoveryData) -> tuple[RecoverySamples, int, int]:
    """Return the samples in pieces, and how many there are to learn from and to decide by.

    Every eighth sample is set aside, whichever the batch size; of a model with a fixed batch size every
    eighth batch. Of fewer than eight the last is.

    Raises:
        RecoveryError: nothing is left to learn from.
        NonFiniteDataError: a sample holds NaN or Inf.
    """
    fixed = fixed_batch_size(data.inputs)
    pieces = list(_fixed(data, fixed) if fixed else _free(data))
    if sum(_size(piece) for piece, _ in pieces) and not any(decides for _, decides in pieces):
        pieces = _last_aside(pieces, fixed)
    fit = [piece for piece, decides in pieces if not decides]
    decide = [piece for piece, decides in pieces if decides]
    if not fit or not decide:
        raise _too_few(len(pieces) if fixed else sum(map(_size, (*fit, *decide))), fixed)
    return RecoverySamples(fit=fit, decide=decide), sum(map(_size, fit)), sum(map(_size, decide))


def _too_few(found: int, fixed: int | None) -> RecoveryError:
    unit = f"batches of {fixed}" if fixed and fixed > 1 else "samples"
    return RecoveryError(
        f"--recover needs at least 2 {unit} of calibration data, found {found}",
        hint="pass more data with --data or --samples, or leave out --recover",
    )


Piece = Mapping[str, Array]
Pieces = Iterator[tuple[Piece, bool]]


def _fixed(data: RecoveryData, size: int) -> Pieces:
    for number, (batch, _) in enumerate(_batches(data, size)):
        yield dict(batch.inputs), _decides(number)


def _decides(number: int) -> bool:
    return number % SET_ASIDE == SET_ASIDE - 1


def _free(data: RecoveryData) -> Pieces:
    apart = 0
    for batch, first in _batches(data, PIECE):
        if batch.axes:  # Samples lie along other axes, or share an array: whole pieces are set aside.
            for start in range(0, batch.size, FEW):
                yield dict(cut(batch, start, min(start + FEW, batch.size)).inputs), _decides(apart)
                apart += 1
            continue
        piece = batch.inputs
        aside = (first + np.arange(_size(piece))) % SET_ASIDE == SET_ASIDE - 1
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
            if first >= MOST_SAMPLES:
                return


def _last_aside(pieces: list[tuple[Piece, bool]], fixed: int | None) -> list[tuple[Piece, bool]]:
    *others, (last, _) = pieces
    divides = not fixed and all(array.ndim and len(array) == _size(last) for array in last.values())
    if not divides or _size(last) < 2:
        return [*others, (last, True)]
    rest = {name: array[:-1] for name, array in last.items()}
    return [*others, (rest, False), ({name: array[-1:] for name, array in last.items()}, True)]


def _size(piece: Piece) -> int:
    return max((len(array) for array in piece.values() if array.ndim), default=1)

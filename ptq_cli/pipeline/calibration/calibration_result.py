"""What a calibration returns, and the files that it writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ptq_cli.calibdata.bind import is_step
from ptq_cli.collectors.artifact.calibration_file import Calibration, calibration_bytes
from ptq_cli.collectors.statistics.tensor_statistics import NonFinite
from ptq_cli.core.files import Content
from ptq_cli.core.numbers.arithmetic import ZERO_AMAX
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.pipeline.calibration.measure import CalibrationSubject
from ptq_cli.pipeline.calibration.rescaling import Rescaling
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.schema import Recipe


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """The result of ``calibrate``.

    Attributes:
        run: where the files are.
        source: the data, as it was named.
        samples: how many samples were seen.
        unit: what is counted as one: ``sample``, or ``step`` where each item of the data is run as it is.
        method: the collector.
        tensors: how many tensors were measured.
        parity: largest relative difference of the float ONNX model to its source, or None if it was not
            compared: ONNX that no pass rewrote.
        dead: names of tensors that were always 0.
        shards: which part of the set was seen, such as ``shard 2 of 8``; empty for all of it.
        nonfinite: tensors that held NaN or infinities, which was allowed, with how many.
        channels: tensors of which each channel was measured, with the number of channels.
        faint: names of tensors that were not always 0, and become it: no value was above 2^-24.
        compared_with: whose outputs ``parity`` compares with.
        notes: what was done to the model and the data that a user should know.
        rescaled: what was done to the channels of the model.
    """

    run: RunDirectory
    source: str
    samples: int
    method: str
    tensors: int
    parity: float | None
    dead: tuple[str, ...]
    shards: str = ""
    nonfinite: Mapping[str, NonFinite] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    faint: tuple[str, ...] = ()
    compared_with: str = "PyTorch's"
    notes: tuple[str, ...] = ()
    unit: str = "sample"
    rescaled: tuple[Rescaling, ...] = ()


@dataclass(frozen=True)
class Calibrated:
    """A calibration that is not written yet.

    Attributes:
        result: what was done.
        model: the float model, serialized.
        calibration: the statistics.
        files: the content of each file to write.
    """

    result: CalibrationResult
    model: StoredModel
    calibration: Calibration
    files: Mapping[Path, Content]


def assemble(
    subject: CalibrationSubject,
    calibration: Calibration,
    recipe: Recipe,
    run: RunDirectory,
    changed: tuple[Rescaling, ...] = (),
) -> Calibrated:
    """Return the files of a calibration, and what to tell of it."""
    model, provenance = subject.model, calibration.provenance
    files: dict[Path, Content] = {
        **model.stored.files(run.float_model),
        run.calibration: calibration_bytes(calibration),
        run.recipe: recipe_to_toml(recipe, run.path).encode(),
    }
    seen = calibration.statistics
    result = CalibrationResult(
        run=run,
        source=str(recipe.calibration.data),
        samples=provenance.samples,
        method=provenance.method,
        tensors=len(seen),
        parity=model.parity,
        dead=tuple(name for name, item in seen.items() if item.dead),
        shards=provenance.share.describe() if provenance.share is not None else "",
        nonfinite={name: item.nonfinite for name, item in seen.items() if item.nonfinite.total},
        channels={name: item.channels.size for name, item in seen.items() if item.channels is not None},
        faint=tuple(name for name, item in seen.items() if 0.0 < max(-item.low, item.high) <= ZERO_AMAX),
        compared_with=model.compared_with,
        notes=(*model.notes, *subject.notes),
        unit="step" if is_step(model.inputs) else "sample",
        rescaled=changed,
    )
    return Calibrated(result, model.stored, calibration, files)

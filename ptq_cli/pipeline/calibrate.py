"""``calibrate``: run the calibration set once, and keep its statistics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.calibdata.batch import Batch
from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.dataset import Dataset
from ptq_cli.calibdata.finite import require_finite
from ptq_cli.calibdata.open import open_dataset
from ptq_cli.collectors.artifact import Calibration, Provenance, calibration_bytes
from ptq_cli.collectors.collect import collect
from ptq_cli.collectors.histogram import compile_kernel
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import EmptyDataError
from ptq_cli.core.files import sha256_bytes, write_together
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.models.detect import ModelKind
from ptq_cli.pipeline.float_model import FloatModel, make_float_model, open_source
from ptq_cli.pipeline.outputs import require_outputs
from ptq_cli.pipeline.provenance import flags_to_store, settings_of, source_hashes
from ptq_cli.pipeline.resolve import Request, resolve
from ptq_cli.pipeline.run_directory import RunDirectory
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target import load_target
from ptq_cli.recipe.encode import recipe_to_toml
from ptq_cli.recipe.schema import CalibrationSettings, EvaluationSettings, ImageSettings, Recipe
from ptq_cli.runtime.session import Session, usable_cores
from ptq_cli.runtime.taps import tap


@dataclass(frozen=True)
class CalibrationResult:
    """What ``calibrate`` did.

    Attributes:
        run: where the files are.
        source: the data, as it was named.
        samples: how many samples were seen.
        method: the collector.
        tensors: how many tensors were measured.
        parity: largest relative difference of the ONNX model to PyTorch, or None where ONNX is the source.
        dead: names of tensors that were always 0.
    """

    run: RunDirectory
    source: str
    samples: int
    method: str
    tensors: int
    parity: float | None
    dead: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """What is calibrated: a model, and the data that show what its inputs look like."""

    model: FloatModel
    dataset: Dataset


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
    model: bytes
    calibration: Calibration
    files: Mapping[Path, bytes]


def run_calibrate(
    request: Request, run: RunDirectory, progress: ProgressCallback = silent
) -> CalibrationResult:
    """Calibrate, and write the float model, the statistics and the resolved recipe.

    Nothing is written before everything succeeded.

    Raises:
        PtqError: the recipe, the model or the data cannot be used, or an output cannot be written.
    """
    recipe = resolve(request)
    require_outputs(run, recipe)
    calibrated = make_calibration(open_subject(recipe, progress), request, recipe, run, progress)
    write_together(calibrated.files)
    return calibrated.result


def open_subject(recipe: Recipe, progress: ProgressCallback) -> Subject:
    """Open the recipe's model and calibration set, and turn the model into ONNX.

    Raises:
        PtqError: one of them cannot be used, or they do not fit each other.
    """
    if recipe.model.path is not None:  # or else the next line says so
        progress(Progress(f"reading {Path(recipe.model.path).name}", 0, None))
    source = open_source(recipe)
    dataset = open_data(recipe.calibration, recipe.image, "calibration", "--data")
    if source.file.kind is not ModelKind.ONNX:
        progress(Progress(f"turning the {source.file.kind.value} into ONNX", 0, None))
    model = make_float_model(source, recipe, dataset)
    if model.parity is None:
        # The part that is tapped may run where the whole does not; better to learn it now than after it ran.
        Session(model.content, threads=recipe.runtime.threads)
    return Subject(model, dataset)


def make_calibration(
    subject: Subject, request: Request, recipe: Recipe, run: RunDirectory, progress: ProgressCallback
) -> Calibrated:
    """Run the calibration set through the model; nothing is written.

    Raises:
        PtqError: the data do not fit the model, or a value is NaN or infinite.
    """
    model, dataset = subject.model, subject.dataset
    statistics, samples = measure(subject, recipe, progress)
    provenance = Provenance(
        model=sha256_bytes(model.content),
        source=model.file.sha256,
        data=dataset.digest(),
        settings=settings_of(recipe, run) | source_hashes(recipe, model.file, run),
        flags=flags_to_store(request, run),
        method=recipe.calibration.method,
        samples=samples,
    )
    calibration = Calibration(provenance, statistics)
    files = {
        run.float_model: model.content,
        run.calibration: calibration_bytes(calibration),
        run.recipe: recipe_to_toml(recipe, run.path).encode(),
    }
    dead = tuple(name for name, item in statistics.items() if item.low == item.high == 0.0)
    result = CalibrationResult(
        run,
        str(recipe.calibration.data),
        samples,
        recipe.calibration.method,
        len(statistics),
        model.parity,
        dead,
    )
    return Calibrated(result, model.content, calibration, files)


def open_data(
    settings: CalibrationSettings | EvaluationSettings, image: ImageSettings, section: str, flag: str
) -> Dataset:
    """Open the data that a section of the recipe names.

    Raises:
        EmptyDataError: the section names none.
        PtqError: it cannot be opened; see ``ptq_cli.calibdata.open``.
    """
    if settings.data is None:
        raise EmptyDataError(
            f"no {section} data was named",
            hint=f"{flag} data.npz, or data = 'data.npz' under [{section}] in ptq.toml",
        )
    return open_dataset(settings.data, image, samples=settings.samples)


def measure(
    subject: Subject, recipe: Recipe, progress: ProgressCallback
) -> tuple[dict[str, TensorStatistics], int]:
    """Run the data through the model; return the statistics of the plan's tensors and the sample count."""
    model, dataset = subject.model, subject.dataset
    plan = make_plan(model.model, load_target(recipe.quantization.target))
    bound = bind_inputs(dataset, model.inputs)
    batch_size = fixed_batch_size(model.inputs) or recipe.calibration.batch_size
    fed = {spec.name for spec in model.inputs}
    inputs = [name for name in plan.measured if name in fed]
    taps = [name for name in plan.measured if name not in fed]
    threads = recipe.runtime.threads or usable_cores()
    compile_kernel()
    statistics, samples = collect(
        # A model of one layer may need the range of its input alone, and no graph runs without an output.
        Session(tap(model.model, taps), threads=threads).run if taps else lambda _inputs: [],
        checked(bound.batches(batch_size)),
        inputs=inputs,
        taps=taps,
        method=recipe.calibration.method,
        threads=threads,
        total=dataset.count,
        progress=progress,
    )
    if not samples:
        raise EmptyDataError(
            "the calibration set has no samples", hint="name a set that has some with --data"
        )
    return statistics, samples


def checked(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches, each checked for NaN and Inf."""
    for batch in batches:
        require_finite(batch)
        yield batch

"""The stages of the main job as contestants: as ptq runs them, and with threads that spin while they wait.

python -m benchmarks.busy_jobs NAME MODEL DATA SAMPLES
"""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.contestants import Job, Moment, Ready, main
from ptq_cli.calibration.count_batches import Counting
from ptq_cli.calibration.measure import measure
from ptq_cli.calibration.subject import open_subject
from ptq_cli.core.progress import silent
from ptq_cli.models.loading import torch_sources as module_source
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.setup.float_model import make_float_model, open_source
from ptq_cli.setup.resolve import Request, open_data, reading_of, resolve
from ptq_cli.setup.run_directory import RunDirectory

SPINNING = " spinning"
ALLOW_SPINNING = "session.intra_op.allow_spinning"


class SpinningOptions(onnxruntime.SessionOptions):  # type: ignore[misc]  # onnxruntime has no types
    """Session options with ONNX Runtime's default for spinning, whatever ptq sets."""

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry, except that threads always spin."""
        super().add_session_config_entry(key, "1" if key == ALLOW_SPINNING else value)


def spin() -> None:
    """Let the threads of ONNX Runtime and PyTorch wait as these libraries do by default."""
    onnxruntime.SessionOptions = SpinningOptions
    module_source.one_thread = contextlib.nullcontext  # type: ignore[assignment,attr-defined]


def _request(model: Path, data: str, samples: int | None, **settings: Any) -> Request:
    return Request(settings={"data": data, "samples": samples, **settings}, model=model, folder=model.parent)


def _calibrate(model: Path, data: str, samples: int | None) -> Job:
    resolved = resolve(_request(model, data, samples))
    subject = open_subject(resolved, silent)

    def job() -> Moment:
        start = Moment()
        measure(subject, resolved, Counting())
        return start

    return job


def _evaluate(model: Path, data: str, samples: int | None) -> Job:
    run = RunDirectory(Path(tempfile.mkdtemp()))
    run_calibrate(_request(model, data, samples), run)
    run_export(Request(settings={}, folder=model.parent), run)
    request = Request(
        settings={"eval_data": data, "eval_samples": samples, "latency": False}, folder=model.parent
    )

    def job() -> Moment:
        start = Moment()
        run_evaluate(request, run)
        return start

    return job


def _to_onnx(model: Path, data: str, samples: int | None) -> Job:
    resolved = resolve(_request(model, data, samples))
    recipe, threads = resolved.recipe, resolved.machine.threads
    dataset = open_data(recipe.calibration, reading_of(recipe), "calibration", "--data")
    source = open_source(recipe.model)

    def job() -> Moment:
        start = Moment()
        make_float_model(source, dataset, threads=threads)
        return start

    return job


def _pytorch(model: Path, data: str, samples: int | None) -> Job:
    """Run the PyTorch model like the comparison with ONNX, but on all samples."""
    recipe = resolve(_request(model, data, samples)).recipe
    dataset = open_data(recipe.calibration, reading_of(recipe), "calibration", "--data")
    source = open_source(recipe.model)
    (array,) = next(dataset.batches(samples or 32)).inputs.values()
    example = {source.input_names[0]: array}

    def job() -> Moment:
        start = Moment()
        source.run(example)
        return start

    return job


def _spinning(ready: Ready) -> Ready:
    def spinning(model: Path, data: str, samples: int | None) -> Job:
        spin()
        return ready(model, data, samples)

    return spinning


JOBS: dict[str, Ready] = {
    "calibrate": _calibrate,
    "evaluate": _evaluate,
    "to ONNX": _to_onnx,
    "PyTorch": _pytorch,
}

if __name__ == "__main__":
    main(JOBS | {name + SPINNING: _spinning(ready) for name, ready in JOBS.items()})

"""The main job on the sample models: measures the promised times and sizes.

python -m benchmarks.main_job            print the table
python -m benchmarks.main_job --write    also write it to benchmarks/RESULTS.md
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import median_ratio, peak_bytes, run_ptq, seconds, take_turns
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibration.count_batches import Counting
from ptq_cli.calibration.measure import measure
from ptq_cli.calibration.subject import open_subject
from ptq_cli.collectors.histogram_collector import compile_kernel
from ptq_cli.core.progress import silent
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from ptq_cli.setup.float_model import FloatModel
from ptq_cli.setup.resolve import Request, resolve

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_models"
CNN = SAMPLES / "cifar10_cnn"
ROUNDS = 7
BATCH = 32
MANY = 5_000


@dataclass(frozen=True)
class Row:
    """One promise: the measurement, the requirement and the result."""

    what: str
    asked: str
    measured: str


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the main job on the sample models.")
    rows = [*calibration_rows(), *latency_rows(), *memory_rows(), *command_rows()]
    lines = [
        f"`python -m benchmarks.main_job --write`, {processor()}, {usable_cores()} cores; medians of "
        f"{ROUNDS} rounds in which the candidates take turns.",
        "",
        "| measurement | required | measured |",
        "|---|---|---|",
        *(f"| {row.what} | {row.asked} | {row.measured} |" for row in rows),
    ]
    print_part("main_job", lines, write=write)


def calibration_rows() -> Iterator[Row]:
    """Histogram and max calibration over the plain forward pass of the same images."""
    subject = open_subject(resolve(Request(settings={}, folder=CNN)), silent)
    model, plan = subject.model, subject.plan
    bound = bind_inputs(subject.dataset, model.inputs)
    plain = Session(model.stored)
    compiling = seconds(compile_kernel)

    def forward() -> None:
        for batch in bound.batches(BATCH):
            plain.run(batch.inputs)

    def calibrate(method: str) -> None:
        with_method = resolve(Request(settings={"method": method}, folder=CNN))
        measure(subject, with_method, Counting())

    times = take_turns([forward, lambda: calibrate("histogram"), lambda: calibrate("max")], ROUNDS)
    read = _read_seconds(model, plan.measured, [batch.inputs for batch in bound.batches(BATCH)])
    yield Row(
        "histogram calibration over plain forward", "at most 2.5", f"{median_ratio(times[1], times[0]):.2f}"
    )
    yield Row("max calibration over plain forward", "", f"{median_ratio(times[2], times[0]):.2f}")
    ideal = 1 + read / median(times[0])
    yield Row("the ideal: forward and one read of every measured element", "", f"{ideal:.2f}")
    yield Row("compiling the counting kernel, once per machine (cached)", "", f"{compiling:.2f} s")


def _read_seconds(
    model: FloatModel, measured: tuple[str, ...], batches: list[dict[str, np.ndarray]]
) -> float:
    """Return the time of one pass that only reads all measured tensors."""
    fed = {spec.name for spec in model.inputs}
    session = Session(tap(model.model, [name for name in measured if name not in fed]))
    total = 0.0
    for inputs in batches:
        arrays = session.run(inputs)
        total += min(seconds(lambda: [array.max() for array in arrays]) for _ in range(3))  # noqa: B023
    return total


def latency_rows() -> Iterator[Row]:
    """The int8 model against the float model in ONNX Runtime, on two threads at batch 32."""
    with tempfile.TemporaryDirectory() as folder:
        run_ptq(["quantize", "--run", folder], CNN)
        files = Path(folder) / "model.float.onnx", Path(folder) / "model_int8.onnx"
        sessions = [Session(path, threads=2) for path in files]
        ratio = files[1].stat().st_size / files[0].stat().st_size
    batch = {"image": np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32)).astype(np.float32)}
    works = [lambda session=session: [session.run(batch) for _ in range(5)] for session in sessions]
    times = take_turns(works, ROUNDS * 3)
    speed = median_ratio(times[0], times[1])
    yield Row("speed of int8 over float, CNN, batch 32, two threads", "at least 1.5", f"{speed:.2f}")
    yield Row("size of the int8 file over the float file, CNN", "at most 36 %", f"{ratio:.1%}")


def memory_rows() -> Iterator[Row]:
    """Peak memory of ``ptq calibrate`` with few and with many images."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        many = folder / "many"
        images = sorted((CNN / "calib").rglob("*.jpg"))
        for index in range(MANY):
            source = images[index % len(images)]
            target = many / source.parent.name / f"{index:05d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        peaks = [
            peak_bytes(
                ["calibrate", "--data", str(many), "--samples", str(count), "--run", str(folder / "run")], CNN
            )
            for count in (len(images), MANY)
        ]
    change = peaks[1] / peaks[0] - 1
    sizes = " and ".join(f"{peak / 1e6:.0f} MB" for peak in peaks)
    yield Row(
        f"peak memory of calibrate, {len(images)} and {MANY:,} images",
        "differ by less than 5 %",
        f"{sizes}: {change:+.1%}",
    )


def command_rows() -> Iterator[Row]:
    """Yield rows of the times of the commands as a user types them."""
    for words, asked in ((["--help"], "at most 0.25 s"), (["calibrate", "--help"], "at most 0.25 s")):
        times = [seconds(lambda: run_ptq(words, CNN)) for _ in range(ROUNDS)]  # noqa: B023
        yield Row(f"`ptq {' '.join(words)}`", asked, f"{median(times):.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        gate = ["gate", f"{folder}/report.json", "--max-drop", "top1=0.01"]
        total = seconds(lambda: _demo(folder))
        yield Row("the commands of `make demo`", "at most 60 s", f"{total:.1f} s")
        times = [seconds(lambda: run_ptq(gate, CNN)) for _ in range(ROUNDS)]
        yield Row("`ptq gate` on a report", "at most 0.3 s", f"{median(times):.2f} s")


def _demo(run: str) -> None:
    run_ptq(
        ["quantize", "model.pt", "--max-drop", "top1=0.01", "--run", f"{run}/digits"],
        SAMPLES / "spoken_digits_transformer",
    )
    run_ptq(["calibrate", "model.pt", "--method", "histogram", "--run", run], CNN)
    run_ptq(["export", "--onnx", "--run", run], CNN)
    run_ptq(["evaluate", "--max-drop", "top1=0.01", "--run", run], CNN)


if __name__ == "__main__":
    main()

"""Cost of checkpoints in a calibration: the time to take and write one, and its share of the interval.

python -m benchmarks.checkpoints            print the table
python -m benchmarks.checkpoints --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.models import write_bert, write_images, write_resnet50, write_sequences
from benchmarks.results_page import is_to_write, print_part, processor
from ptq_cli.calibration.count_batches import Counting
from ptq_cli.calibration.measure import CheckpointWriter, measure
from ptq_cli.calibration.subject import CalibrationSubject, open_subject
from ptq_cli.collectors.calibration_file import Provenance, Share
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.progress import silent
from ptq_cli.recipe.sections import RuntimeSettings
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.resumable import COST_LIMIT, Checkpoints

Snapshot = Callable[[], dict[str, TensorStatistics]]
ROOT = Path(__file__).parent.parent
CNN = ROOT / "sample_models" / "cifar10_cnn"
INTERVAL = RuntimeSettings().checkpoint_every
MANY_TENSORS, VALUES = 2_000, 20_000
OFTEN = 1.0
PROVENANCE = Provenance(
    model="",
    source="",
    data="",
    settings={},
    flags={},
    method="histogram",
    samples=0,
    share=Share(1, {1: 0}, 32, finished=False),
)


@dataclass
class Timed:
    """A checkpoint writer that records the seconds of each checkpoint."""

    writer: CheckpointWriter
    seconds: list[float] = field(default_factory=list)

    def is_due(self) -> bool:
        """Tell whether it is time for a checkpoint."""
        return self.writer.is_due()

    def write(self, batches: int, samples: int, snapshot: Snapshot) -> None:
        """Write a checkpoint, and record how long it took."""
        start = time.perf_counter()
        self.writer.write(batches, samples, snapshot)
        self.seconds.append(time.perf_counter() - start)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the cost of checkpoints.")
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            f"`python -m benchmarks.checkpoints --write`, {processor()}, {usable_cores()} cores. The "
            f"times are medians of the checkpoints after each batch. The default is one every {INTERVAL:.0f} "
            f"seconds, and fewer if they would take more than {COST_LIMIT:.0%} of the time.",
            "",
            "| calibration | tensors | file | one checkpoint | share of the time (required: below 1 %) |",
            "|---|---|---|---|---|",
            *rows(Path(scratch)),
        ]
    print_part("checkpoints", lines, write=write)


def rows(scratch: Path) -> Iterator[str]:
    """Measure, and yield the rows of the table."""
    write_resnet50(scratch / "resnet50.onnx")
    write_images(scratch / "images.npz", 16)
    write_bert(scratch / "bert.onnx")
    write_sequences(scratch / "words.npz", 64, 64)
    subjects = {
        "CNN sample": open_case(Request(settings={"batch_size": 32}, folder=CNN)),
        "ResNet-50-shaped": open_case(
            Request(
                settings={"data": str(scratch / "images.npz"), "batch_size": 4},
                model=scratch / "resnet50.onnx",
            )
        ),
        "BERT-shaped, 6 layers": open_case(
            Request(
                settings={"data": str(scratch / "words.npz"), "batch_size": 8}, model=scratch / "bert.onnx"
            )
        ),
    }
    path = scratch / "checkpoint"
    for name, (subject, resolved) in subjects.items():
        timed = Timed(CheckpointWriter(Checkpoints(path, "calibration", 0, print), PROVENANCE))
        statistics, *_ = measure(subject, resolved, Counting(checkpoints=timed))
        yield row(name, len(statistics), path, timed.seconds)
    timed = Timed(CheckpointWriter(Checkpoints(path, "calibration", 0, print), PROVENANCE))
    for _ in range(5):
        timed.write(1, 1, many_tensors())
    yield row(f"{MANY_TENSORS:,} tensors, two-sided", MANY_TENSORS, path, timed.seconds)
    yield often(*subjects["CNN sample"], path)


def open_case(request: Request) -> tuple[CalibrationSubject, Resolved]:
    """Return a model with its data, and the settings."""
    resolved = resolve(request)
    return open_subject(resolved, silent), resolved


def many_tensors() -> Snapshot:
    """Return a function that takes the statistics of many tensors with different values."""
    random = np.random.default_rng(0)
    collectors = [HistogramCollector() for _ in range(MANY_TENSORS)]
    for collector in collectors:
        collector.update(random.standard_normal(VALUES).astype(np.float32))

    def snapshot() -> dict[str, TensorStatistics]:
        return {f"tensor_{index}": collector.statistics() for index, collector in enumerate(collectors)}

    return snapshot


def row(name: str, tensors: int, path: Path, seconds: list[float]) -> str:
    """Return the row of one calibration."""
    one = median(seconds)
    share = one / (max(INTERVAL, one / COST_LIMIT) + one)
    size = path.stat().st_size / 1e6
    return f"| {name} | {tensors:,} | {size:.1f} MB | {1e3 * one:.0f} ms | {share:.3%} |"


def often(subject: CalibrationSubject, resolved: Resolved, path: Path) -> str:
    """Return the row of a calibration with a checkpoint requested every second; it may write fewer."""
    path.unlink()
    timed = Timed(CheckpointWriter(Checkpoints(path, "calibration", OFTEN, print), PROVENANCE))
    start = time.perf_counter()
    samples = 0
    while time.perf_counter() - start < 40 * OFTEN:
        tensors, _, seen = measure(subject, resolved, Counting(checkpoints=timed))
        samples += seen
    share = sum(timed.seconds) / (time.perf_counter() - start)
    count = len(timed.seconds)
    what = f"CNN sample, `--set runtime.checkpoint_every={OFTEN:.0f}`: "
    what += f"{count} written while {samples:,} samples ran"
    size = path.stat().st_size / 1e6
    return f"| {what} | {len(tensors)} | {size:.1f} MB | {1e3 * median(timed.seconds):.0f} ms | {share:.3%} |"


if __name__ == "__main__":
    main()

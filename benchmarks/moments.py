"""What ``ptq calibrate --moments`` costs beside a forward pass, and how much memory it takes.

python -m benchmarks.moments               print the table
python -m benchmarks.moments --images 64   of a set of so many images alone
python -m benchmarks.moments --write       also write it to benchmarks/RESULTS.md
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import ptq_cli
from benchmarks.models import write_images, write_resnet50
from benchmarks.results_page import print_part, result_parser
from benchmarks.timing import peak_bytes
from ptq_cli.core.progress import Progress
from ptq_cli.recover.collect_moments import STAGE
from ptq_cli.runtime.session import Session

SETS, BATCH = (64, 256), 8
FORWARD = 64
"""Images of the forward passes, before and after: each image takes as long as any other."""
LIMIT = 2_000_000_000
HEADER = (
    "images",
    "forward pass",
    "the pass for moments alone",
    "with set-up and file",
    "peak of memory",
    "file",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure the cost of moments on ResNet-50's shape.")
    parser.add_argument("--images", type=int, nargs="+", default=SETS, help="sizes of the sets")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print_part("moments", table(Path(scratch), arguments.images), write=arguments.write)


def table(scratch: Path, sets: Sequence[int]) -> list[str]:
    """Return the lines of the table."""
    model = scratch / "model.onnx"
    write_resnet50(model)
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    return lines + [f"| {' | '.join(row(scratch, model, images))} |" for images in sets]


def row(scratch: Path, model: Path, count: int) -> list[str]:
    """Measure a set of so many images."""
    data, run = scratch / f"calib{count}.npz", scratch / f"run{count}"
    write_images(data, count)
    ptq_cli.calibrate(str(model), data=str(data), run=run, threads=1, batch_size=BATCH)
    images = np.load(data)["image"]
    session = Session(run / "model.float.onnx", threads=1)
    marks: list[float] = []

    def forward() -> None:
        for start in range(0, FORWARD, BATCH):
            session.run({"image": images[start : start + BATCH]})

    def mark(step: Progress) -> None:
        if step.stage == STAGE and not step.note:
            marks.append(time.process_time())

    forward()
    once = _spent(forward)
    whole = _spent(lambda: ptq_cli.collect_moments(run=run, threads=1, batch_size=BATCH, progress=mark))
    one = (once + _spent(forward)) / 2 * count / FORWARD
    command = [
        "calibrate",
        "--moments",
        "--run",
        str(run),
        "--set",
        "runtime.threads=1",
        "--set",
        f"runtime.max_memory={LIMIT}",
    ]
    peak = peak_bytes(command, scratch)
    alone = marks[-1] - marks[0]
    size = (run / "moments.safetensors").stat().st_size
    return [
        str(count),
        f"{one:.1f} s",
        f"{alone:.1f} s, {alone / one:.2f} forward passes",
        f"{whole:.1f} s, {whole / one:.2f}",
        f"{peak / 1e6:.0f} MB",
        f"{size / 1e6:.0f} MB",
    ]


def _spent(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()

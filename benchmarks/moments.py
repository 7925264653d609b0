"""What ``ptq calibrate --moments`` costs beside a forward pass, and how much memory it takes.

python -m benchmarks.moments            print the table
python -m benchmarks.moments --write    also write it to benchmarks/RESULTS.md
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ptq_cli
from benchmarks.models import write_images, write_resnet50
from benchmarks.timing import peak_bytes
from ptq_cli.runtime.session import Session
from tools.marked import write_part

RESULTS = Path(__file__).parent / "RESULTS.md"
IMAGES, BATCH = 64, 8
LIMIT = 2_000_000_000


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = argparse.ArgumentParser(description="Measure the cost of moments on ResNet-50's shape.")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = "\n".join(table(Path(scratch)))
    print(text)
    if arguments.write:
        write_part(RESULTS, "moments", text)


def table(scratch: Path) -> list[str]:
    """Return the lines of the table."""
    model, data, run = scratch / "model.onnx", scratch / "calib.npz", scratch / "run"
    write_resnet50(model)
    write_images(data, IMAGES)
    ptq_cli.calibrate(str(model), data=str(data), run=run, threads=1, batch_size=BATCH)
    images = np.load(data)["image"]
    session = Session(run / "model.float.onnx", threads=1)

    def forward() -> None:
        for start in range(0, IMAGES, BATCH):
            session.run({"image": images[start : start + BATCH]})

    forward()
    once = _spent(forward)
    moments = _spent(lambda: ptq_cli.collect_moments(run=run, threads=1, batch_size=BATCH))
    again = _spent(forward)
    command = ["calibrate", "--moments", "--run", str(run), "--threads", "1", "--max-memory", str(LIMIT)]
    peak = peak_bytes(command, scratch)
    passes = moments / ((once + again) / 2)
    size = (run / "moments.safetensors").stat().st_size
    return [
        f"| ResNet-50's shape, {IMAGES} images, one thread | |",
        "| --- | --- |",
        f"| processor time of `ptq calibrate --moments`, in forward passes (at most 2) | {passes:.2f} |",
        f"| size of `moments.safetensors` | {size / 1e6:.0f} MB |",
        f"| peak of memory with `--max-memory {LIMIT / 1e6:.0f}MB` | {peak / 1e6:.0f} MB |",
    ]


def _spent(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()

"""Where the time of a calibration on small images goes, by the number of samples in a piece of a batch.

python -m benchmarks.pieces            print the table
python -m benchmarks.pieces --write    also write it to benchmarks/RESULTS.md

One thread runs the tapped ResNet-56 in pieces of each size, and counts nothing, ranges or histograms. All
take turns with the plain model in batches of 32, and processor time is compared.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.models import write_images, write_resnet56
from benchmarks.results_page import print_part, processor, result_parser
from ptq_cli.calibration.collect import Feeding, host_groups
from ptq_cli.calibration.subject import open_subject
from ptq_cli.collectors.histogram_collector import SharedMemory, compile_kernel
from ptq_cli.core.progress import silent
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.tapped import Buffers, open_tapped
from ptq_cli.runtime.tapping.taps import tap
from ptq_cli.setup.resolve import Request, resolve

SIZES = (1, 2, 4, 8, 16, 32)
METHODS = (None, "max", "histogram")
SAMPLES, BATCH, ROUNDS = 64, 32, 9

Images = npt.NDArray[np.float32]
Work = Callable[[], None]


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = result_parser("Measure what pieces of each size cost.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print_part("pieces", _lines(Path(scratch), arguments.rounds), write=arguments.write)


def _lines(scratch: Path, rounds: int) -> Iterator[str]:
    model, data = scratch / "model.onnx", scratch / "images.npz"
    write_resnet56(model)
    write_images(data, SAMPLES, side=32)
    load = os.getloadavg()[0]
    plain, works, elements = _works(model, data)
    taken: list[float] = []
    times: dict[tuple[int, str | None], list[float]] = {key: [] for key in works}
    for round_ in range(rounds + 1):
        first = _processor_seconds(plain)
        each = {key: _processor_seconds(work) for key, work in works.items()}
        if round_:  # The first is the warm-up.
            taken.append(first)
            for key, seconds in each.items():
                times[key].append(seconds)
    least = min(taken)
    yield (
        f"`python -m benchmarks.pieces --write`, {processor()}, one thread, load {load:.1f} at "
        f"the start; processor time, the least of {rounds} rounds in turns. {elements:,} tapped elements a "
        f"sample; the plain model in batches of {BATCH} takes {least / SAMPLES * 1e3:.2f} ms a sample: 1.00."
    )
    yield ""
    yield "| samples of a piece | tapped model alone | max | histogram | more than plain, each element |"
    yield "|---|---|---|---|---|"
    for size in SIZES:
        found = [min(times[size, method]) for method in METHODS]
        ratios = " | ".join(f"{seconds / least:.2f}" for seconds in found)
        more = ", ".join(f"{(one - least) / SAMPLES / elements * 1e9:+.2f} ns" for one in found)
        yield f"| {size} | {ratios} | {more} |"


def _works(model: Path, data: Path) -> tuple[Work, dict[tuple[int, str | None], Work], int]:
    """Return what runs the plain model, what runs pieces of each size, and the elements of a sample."""
    compile_kernel()
    subject = open_subject(
        resolve(Request(settings={"data": str(data)}, model=model, folder=model.parent)), silent
    )
    fed = {spec.name for spec in subject.model.inputs}
    taps = [name for name in subject.plan.measured if name not in fed]
    plain, (session, blocked) = (
        Session(subject.model.stored, threads=1),
        open_tapped(tap(subject.model.model, taps), 1),
    )
    images: Images = np.load(data)["image"]
    elements = sum(array.size for array in session.run({"image": images[:1]}))

    def run_plain() -> None:
        for start in range(0, SAMPLES, BATCH):
            plain.run({"image": images[start : start + BATCH]})

    tapped = blocked[0] if blocked is not None else session
    works = {
        (size, method): _work(tapped, taps, images, size, method) for size in SIZES for method in METHODS
    }
    return run_plain, works, elements


def _work(session: Session, taps: list[str], images: Images, size: int, method: str | None) -> Work:
    outputs = session.run({"image": images[:size]})
    arrays = Buffers().take([(array.dtype, array.shape) for array in outputs])
    binding = session.bind_outputs(arrays)
    feeding = Feeding(host_groups(taps, method), taps) if method is not None else None
    spans = {name: span for name, span in zip(taps, arrays.spans, strict=True) if span is not None}
    shared, pool = SharedMemory(arrays.words, spans), ThreadPoolExecutor(1)

    def work() -> None:
        for start in range(0, SAMPLES, size):
            session.run_bound({"image": images[start : start + size]}, binding)
            if feeding is not None:
                feeding.count(dict(zip(taps, arrays, strict=True)), shared, pool, 0)

    return work


def _processor_seconds(work: Work) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


if __name__ == "__main__":
    main()

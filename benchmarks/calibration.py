"""Cost of calibration, compared with the plain forward pass and with ONNX Runtime's own calibrators.

python -m benchmarks.calibration            print the tables
python -m benchmarks.calibration --write    also write them to benchmarks/RESULTS.md
python -m benchmarks.calibration --case cnn --quick    one case, without ONNX Runtime's calibrators

Each contestant has its own process (``benchmarks.contestants``); they take turns in each round. Start-up
(sessions, compiled kernels) is not counted, and has its own column.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.models import write_bert, write_images, write_resnet50, write_resnet56, write_sequences
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.timing import run_ptq
from benchmarks.turns import Answer, Contestant, Marginal
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.setup.resolve import Request, open_data, reading_of, resolve

ROOT = Path(__file__).parent.parent
CNN = ROOT / "sample_models" / "cifar10_cnn"
ROUNDS = 7
FEW, MANY, MEMORY_SAMPLES = 500, 5_000, 1_000
FORWARD = ("forward", "forward without spinning")
OURS = ("ptq max", "ptq histogram")
THEIRS = ("onnxruntime MinMax", "onnxruntime Entropy", "onnxruntime Percentile")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with its data.

    Attributes:
        name: value of ``--case``.
        title: heading of the table.
        model, data: their files.
        samples: number of samples for our calibrators.
        samples_of_theirs: number for ONNX Runtime's, which keep all activations in memory.
        limits: largest allowed time of max and of histogram over forward.
        less: number of samples whose time is taken off, with all that happens once; 0 takes nothing off.
    """

    name: str
    title: str
    model: Path
    data: Path
    samples: int
    samples_of_theirs: int
    limits: tuple[float, float]
    less: int = 0


# Files that are not absolute are written into a scratch folder.
CASES = (
    Case(
        name="cnn",
        title="(a) CNN sample, 2,000 images as arrays",
        model=CNN / "model.pt",
        data=Path("cnn.npz"),
        samples=2_000,
        samples_of_theirs=2_000,
        limits=(1.35, 1.80),
    ),
    Case(
        name="jpeg",
        title="(a) including decoding, in both",
        model=CNN / "model.pt",
        data=CNN / "eval",
        samples=2_000,
        samples_of_theirs=2_000,
        limits=(1.35, 1.80),
    ),
    Case(
        name="resnet50",
        title="(b) ResNet-50's shape, 64 images of 224²",
        model=Path("resnet50.onnx"),
        data=Path("images.npz"),
        samples=64,
        samples_of_theirs=16,
        limits=(1.15, 1.30),
    ),
    Case(
        name="bert",
        title="(c) BERT's shape, 6 layers, 256 x 64 words",
        model=Path("bert.onnx"),
        data=Path("sequences.npz"),
        samples=256,
        samples_of_theirs=32,
        limits=(1.15, 1.30),
    ),
    Case(
        name="resnet56",
        title="(d) ResNet-56's shape, 3,000 images of 32², less 200 of them",
        model=Path("resnet56.onnx"),
        data=Path("small.npz"),
        samples=3_000,
        samples_of_theirs=256,
        limits=(1.30, 1.60),
        less=200,
    ),
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Measure the cost of calibration.")
    parser.add_argument("--case", help="run only this case: cnn, jpeg, resnet50, bert or resnet56")
    parser.add_argument("--quick", action="store_true", help="skip ONNX Runtime and the memory table")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PTQ_BENCHMARK_SCRATCH"] = scratch
        for part, lines in _parts(Path(scratch), arguments):
            print_part(f"calibration_{part}", lines, write=arguments.write)


def _parts(scratch: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each part of the page: its name, and the lines that measuring gives."""
    cases = make_cases(scratch, arguments.case)
    for case in cases:
        theirs = not arguments.quick and case.name != "jpeg"
        yield case.name, _table(case, arguments.rounds, theirs=theirs)
    if not arguments.quick and any(case.name == "cnn" for case in cases):
        yield "memory", _memory_table(replace(cases[0], model=_as_onnx(cases[0], scratch)))


def _table(case: Case, rounds: int, *, theirs: bool) -> Iterator[str]:
    yield (
        f"**{case.title}**, {processor()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f} at "
        f"the start, medians of {rounds} rounds"
    )
    yield ""
    yield from case_lines(case, rounds, theirs=theirs)


def _memory_table(case: Case) -> Iterator[str]:
    yield "**Peak memory**, CNN sample as ONNX, from arrays: no process loads PyTorch"
    yield ""
    yield from memory_lines(case)


def make_cases(scratch: Path, only: str | None) -> list[Case]:
    """Write models and data, and return all cases, or only the named one."""
    chosen = [
        replace(case, model=scratch / case.model, data=scratch / case.data)
        for case in CASES
        if only in (None, case.name)
    ]
    for case in chosen:
        _WRITERS[case.name](case)
    return chosen


def _write_jpeg(_: Case) -> None:
    """Write nothing: the images lie beside the sample."""


def _write_resnet50(case: Case) -> None:
    write_resnet50(case.model)
    write_images(case.data, case.samples)


def _write_bert(case: Case) -> None:
    write_bert(case.model)
    write_sequences(case.data, case.samples, 64)


def _write_resnet56(case: Case) -> None:
    write_resnet56(case.model)
    write_images(case.data, case.samples, side=32)


def _write_cnn_arrays(case: Case) -> None:
    """Write the decoded images of the sample, repeated until there are enough."""
    recipe = resolve(Request(settings={"data": str(CNN / "eval")}, folder=CNN)).recipe
    dataset = open_data(recipe.calibration, reading_of(recipe), "calibration", "--data")
    (whole,) = dataset.batches(2_000)
    (images,) = whole.inputs.values()
    np.savez(case.data, image=np.concatenate([images] * (MANY // len(images) + 1))[:MANY])


_WRITERS = {
    "cnn": _write_cnn_arrays,
    "jpeg": _write_jpeg,
    "resnet50": _write_resnet50,
    "bert": _write_bert,
    "resnet56": _write_resnet56,
}


def _as_onnx(case: Case, scratch: Path) -> Path:
    path = scratch / "cnn.onnx"
    words = ["export", "--float", str(case.model), "--output", str(path)]
    run_ptq(words, case.model.parent)
    return path


def case_lines(case: Case, rounds: int, *, theirs: bool) -> Iterator[str]:
    """Measure a case; yield the rows of its table."""
    names = [*FORWARD, *OURS]
    contestants = [_contestant(name, case) for name in names]
    for contestant in contestants:
        contestant.work()
    rows = [[contestant.work() for contestant in contestants] for _ in range(rounds)]
    for contestant in contestants:
        contestant.close()
    answers = dict(zip(names, zip(*rows, strict=True), strict=True))
    forward = [
        min(*pair, key=lambda answer: answer.seconds)
        for pair in zip(*(answers[n] for n in FORWARD), strict=True)
    ]
    yield "| | wall time | over forward | required | processor time over forward | start-up | peak memory |"
    yield "|---|---|---|---|---|---|---|"
    yield _row("forward, the faster of two", forward, forward, "")
    for name, limit in zip(OURS, case.limits, strict=True):
        yield _row(name, answers[name], forward, f"≤ {limit:.2f}")
    if theirs:
        yield from _their_rows(case, forward, answers["ptq histogram"])
    read = read_seconds(case)
    ideal = 1 + read / _middle(forward)
    yield f"| ideal: forward and one read of every measured element | | {ideal:.2f} | | | | |"


def _contestant(name: str, case: Case) -> Contestant | Marginal:
    if case.less:
        return Marginal(name, case.model, case.data, case.samples, case.less)
    return Contestant(name, case.model, case.data, case.samples)


def _row(name: str, answers: Sequence[Answer], forward: Sequence[Answer], asked: str) -> str:
    ratio = median(one.seconds / other.seconds for one, other in zip(answers, forward, strict=True))
    work = median(one.processors / other.processors for one, other in zip(answers, forward, strict=True))
    startup = median(answer.startup for answer in answers)
    return (
        f"| {name} | {_middle(answers):.2f} s | {ratio:.2f} | {asked} | {work:.2f} | {startup:.2f} s | "
        f"{max(answer.peak for answer in answers) / 1e6:.0f} MB |"
    )


def _middle(answers: Sequence[Answer]) -> float:
    return median(answer.seconds for answer in answers)


def _their_rows(case: Case, forward: Sequence[Answer], ours: Sequence[Answer]) -> Iterator[str]:
    for name in THEIRS:
        contestant = Contestant(name, case.model, case.data, case.samples_of_theirs)
        answer = contestant.work()
        contestant.close()
        part = (case.samples - case.less) / case.samples_of_theirs
        faster = answer.seconds * part / _middle(ours)
        note = "" if part == 1 else f" ({case.samples_of_theirs} samples, time x {part:.0f})"
        asked = "" if name.endswith("MinMax") else "at least 6 x ptq histogram"
        seconds = answer.seconds * part
        yield (
            f"| {name}{note} | {seconds:.2f} s | {seconds / _middle(forward):.2f}, "
            f"{faster:.1f} x ptq histogram | {asked} | | {answer.startup:.2f} s | "
            f"{answer.peak / 1e6:.0f} MB |"
        )


def read_seconds(case: Case) -> float:
    """Return the time of reading every measured element once, on all cores together."""
    with Contestant("one read", case.model, case.data, case.samples - case.less) as contestant:
        return min(contestant.work().seconds for _ in range(3))


def memory_lines(case: Case) -> Iterator[str]:
    """Yield rows of the peak memory for each number of samples, and that of ONNX Runtime."""
    yield f"| | {FEW} samples | {MEMORY_SAMPLES:,} samples | {MANY:,} samples | {FEW} to {MANY:,} |"
    yield "|---|---|---|---|---|"
    ours = 0
    for name in OURS:
        few, some, many = (_peak(name, case, count) for count in (FEW, MEMORY_SAMPLES, MANY))
        sizes = " | ".join(f"{size / 1e6:.0f} MB" for size in (few, some, many))
        yield f"| {name} | {sizes} | {many / few - 1:+.1%} (required: ±5 %) |"
        ours = some
    for name in THEIRS[1:]:
        theirs = _peak(name, case, MEMORY_SAMPLES)
        share = f"ptq histogram takes {ours / theirs:.0%} (required: at most 20 %)"
        yield f"| {name} | | {theirs / 1e6:.0f} MB | | {share} |"


def _peak(name: str, case: Case, samples: int) -> int:
    with Contestant(name, case.model, case.data, samples) as contestant:
        return contestant.work().peak


if __name__ == "__main__":
    main()

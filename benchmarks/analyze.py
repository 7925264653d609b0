"""Cost of an analysis, compared with plain forward passes and with one session per variant.

python -m benchmarks.analyze            print the table
python -m benchmarks.analyze --write    also write it to benchmarks/RESULTS.md
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.results_page import is_to_write, print_part, processor
from benchmarks.timing import Work, peak_bytes, run_ptq
from ptq_cli.analysis.run_analyze import run_analyze
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.core.documents import read_document
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request, open_data, reading_of, resolve
from ptq_cli.setup.run_directory import RunDirectory

ROOT = Path(__file__).parent.parent
CNN = ROOT / "sample_models" / "cifar10_cnn"
SPEECH = ROOT / "sample_models" / "spoken_digits_transformer"
ROUNDS = 3
BATCH = 32
IMAGES = 256
HUNDRED = 100
# Blocks per stage. The sample has 2, 2, 2 and 3; with these, 101 layers are quantized.
DEEP_BLOCKS = (6, 6, 8, 8)

DEEPER = """

def build() -> nn.Module:
    from dataclasses import replace
    stages = [replace(stage, blocks=count) for stage, count in zip(STAGES, {blocks}, strict=True)]
    return InvertedResidualNet(stages)
"""
SAVE = "import torch, model; torch.manual_seed(0); torch.save(model.build().state_dict(), 'model.pt')"


@dataclass(frozen=True)
class Taken:
    """Seconds of one turn."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Subject:
    """A sample model with a finished run in its own folder."""

    name: str
    folder: Path
    run: RunDirectory


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure the time and memory of an analysis.")
    with tempfile.TemporaryDirectory() as scratch:
        print_part("analyze", page(Path(scratch)), write=write)


def page(scratch: Path) -> Iterator[str]:
    """Measure, and yield the lines."""
    subjects = [
        prepared("CNN sample", CNN, scratch / "cnn"),
        prepared("CNN sample, deeper", deeper(scratch / "deep"), scratch / "deep-run"),
        prepared("transformer sample", SPEECH, scratch / "speech"),
    ]
    yield (
        f"`python -m benchmarks.analyze --write`, {processor()}, {usable_cores()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the start; {IMAGES} samples, {ROUNDS} rounds in which the candidates "
        "take turns. *Analyze* is the shortest wall time; processor times are medians. The layers are those "
        "with a sensitivity, and each needs two models. *Work* counts forward passes by their "
        "multiply-accumulates; *over a plain pass* is the processor time over that of a plain pass, the mean "
        "of the float and the int8 model. *A session each* opens and runs a whole model for each of these."
    )
    yield ""
    header = ("model", "layers", "analyze", "required", "processor time", "work", "over a plain pass")
    yield f"| {' | '.join(header)} | a session each | peak memory |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for subject in subjects:
        yield f"| {' | '.join(row(subject))} |"


def prepared(name: str, folder: Path, run: Path) -> Subject:
    """Quantize a model in its folder, and return it."""
    run_ptq(["quantize", "--run", str(run)], folder)
    return Subject(name, folder, RunDirectory(run))


def deeper(folder: Path) -> Path:
    """Create a folder like the CNN sample's, with more blocks of the same kinds and random weights."""
    shutil.copytree(CNN, folder, ignore=shutil.ignore_patterns("ptq-run", "__pycache__", "model.pt"))
    with (folder / "model.py").open("a", encoding="utf-8") as file:
        file.write(DEEPER.format(blocks=DEEP_BLOCKS))
    subprocess.run([sys.executable, "-c", SAVE], cwd=folder, check=True)
    return folder


def row(subject: Subject) -> Sequence[str]:
    """Measure one model."""
    request = Request(settings={"eval_samples": IMAGES}, folder=subject.folder)
    recipe = resolve(request).recipe
    paths = (subject.run.float_model, subject.run.quantized_model)
    sessions = [Session(path) for path in paths]
    data = open_data(recipe.evaluation, reading_of(recipe), "evaluation", "--eval-data")
    batches = list(bind_inputs(data, sessions[0].inputs).batches(BATCH))

    def passes() -> None:
        for session in sessions:
            for batch in batches:
                session.run(batch.inputs)

    def a_session_each() -> None:
        for path in paths:
            session = Session(path)
            for batch in batches:
                session.run(batch.inputs)

    def analyze() -> None:
        run_analyze(request, subject.run)

    both, each, whole = take_turns_by_both((passes, a_session_each, analyze))
    cost = read_document(Analysis, subject.run.analysis).cost
    layers = cost.variants // 2
    ratio = median(2 * taken.processor / pair.processor for taken, pair in zip(whole, both, strict=True))
    words = ["analyze", "--run", str(subject.run.path), "--samples", str(IMAGES)]
    return (
        subject.name,
        str(layers),
        f"{min(taken.wall for taken in whole):.1f} s",
        "at most 60 s" if layers >= HUNDRED else "",
        f"{median(taken.processor for taken in whole):.1f} s",
        f"{cost.forward_passes:.1f}",
        f"{ratio:.1f}",
        f"{layers * median(taken.processor for taken in each):.1f} s",
        f"{peak_bytes(words, subject.folder) / 1e6:.0f} MB",
    )


def take_turns_by_both(works: Sequence[Work]) -> list[list[Taken]]:
    """Return the wall time and the processor time of each piece of work in each round, in seconds."""
    for work in works:
        work()
    times: list[list[Taken]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, taken in zip(works, times, strict=True):
            began, used = time.perf_counter(), time.process_time()
            work()
            taken.append(Taken(time.perf_counter() - began, time.process_time() - used))
    return times


if __name__ == "__main__":
    main()

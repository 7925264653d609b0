"""A classifier with weights of 4 bits and activations of 8, by AIMET's AdaRound and by ptq."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.each_network import table_line
from benchmarks.peers.spent import Spent, Way, measured, ptq_way, version_in
from benchmarks.results_page import processor
from benchmarks.speed import write_cnn
from benchmarks.static_quantization import CNN
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.bootstrap import count_flips
from ptq_cli.evaluation.interval import drop_interval
from ptq_cli.evaluation.metrics.value_errors import Sqnr
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request, open_data, reading_of, resolve

SCRIPT = Path(__file__).with_name("by_aimet.py")
BATCH = 50
COLUMNS = ("way", "processor time", "memory", "top-1", "drop, 95 % interval", "agreement", "SQNR")


def vision_report(folder: Path, aimet: Path, steps: int) -> Iterator[str]:
    """Quantize the CNN sample in each way, and yield the lines of the table."""
    if not (folder / "model.onnx").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_cnn(folder)
    with np.load(folder / "calib.npz") as arrays:
        samples = len(arrays["image"])
    yield (
        f"`python -m benchmarks.peers DIR --aimet PYTHON --steps {steps} --write`, the CNN sample, {samples} "
        f"images to calibrate with, {processor()}, aimet-onnx {version_in(aimet, 'aimet-onnx')}, onnxruntime "
        f"{onnxruntime.__version__}; AdaRound takes {steps:,} steps a layer (its default is 10,000)."
    )
    yield from ("", table_line(*COLUMNS), f"|{'---|' * len(COLUMNS)}")
    judge = Judge(folder)
    for way in ways_of(folder, aimet, steps, samples):
        yield table_line(*judge.cells(way, measured(way)))


def ways_of(folder: Path, aimet: Path, steps: int, samples: int) -> Iterator[Way]:
    """Yield the ways of quantizing: AIMET's, and ptq's."""
    files = [folder / "model.onnx", folder / "calib.npz"]
    for title, name, taken in (("to nearest", "aimet_nearest", 0), ("AdaRound", "aimet", steps)):
        output = folder / f"{name}.onnx"
        words = [*map(str, files), str(output), "--samples", str(samples), "--steps", str(taken)]
        yield Way(f"AIMET, {title}", output, [aimet, SCRIPT, *words])
    model, data = files
    for rungs in ("none", "round", "all"):
        yield ptq_way(
            folder, rungs, [model, "--data", data], ["--weight-bits", "4", "--set", f"recovery.rungs={rungs}"]
        )


class Judge:
    """Runs files on the evaluation images of the sample, and compares them with the float model."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "eval.npz") as arrays:
            self._images = arrays["image"]
        self._labels = labels_of_sample()
        self._of_float = self._scores(folder / "model.onnx")

    def _scores(self, file: Path) -> Array:
        session = Session(file, threads=1)
        (name,) = (spec.name for spec in session.inputs)
        starts = range(0, len(self._images), BATCH)
        return np.concatenate([session.run({name: self._images[at : at + BATCH]})[0] for at in starts])

    def cells(self, way: Way, spent: Spent) -> Sequence[str]:
        """Return the cells of a way's row."""
        scores, sqnr = self._scores(way.output), Sqnr()
        sqnr.update(self._of_float, scores)
        before, after = (found.argmax(axis=1) for found in (self._of_float, scores))
        flips = count_flips(*((found == self._labels).astype(np.float64) for found in (before, after)))
        interval = drop_interval(flips)
        return (
            way.title,
            f"{spent.seconds:.0f} s",
            f"{spent.peak / 1e9:.1f} GB",
            f"{np.mean(after == self._labels):.2%}",
            f"{100 * flips.drop:.2f} points ({100 * interval.low:.2f} to {100 * interval.high:.2f})",
            f"{np.mean(before == after):.2%}",
            f"{sqnr.compute():.1f} dB",
        )


def labels_of_sample() -> Array:
    """Return the classes of the sample's evaluation images."""
    with contextlib.chdir(CNN):
        recipe = resolve(Request(settings={}, model=CNN / "model.pt", folder=CNN)).recipe
        images = open_data(recipe.evaluation, reading_of(recipe), "evaluation", "--data")
        return np.concatenate([batch.labels for batch in images.batches(BATCH) if batch.labels is not None])

"""Does ``ptq drift`` find data that have moved, is it silent on others, and what does it cost?

python -m benchmarks.drift            print the tables
python -m benchmarks.drift --write    also write them to benchmarks/RESULTS.md

Brightness multiplies the pixels of the images. The features of the recordings have the mean of each band
taken away, and with it any constant gain of a microphone; what is left of one is automatic gain, which
brings loud and quiet closer together or further apart: it multiplies the logarithms.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import numpy.typing as npt
from PIL import Image

import ptq_cli
from benchmarks.results_page import is_to_write, print_part
from benchmarks.timing import run_ptq, seconds
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.models.files.stored import read_model
from ptq_cli.monitoring.compared_drift import Seen
from ptq_cli.monitoring.drift import LEAST_DISTANCE, Blocks, Drift, Grid, chance_of, distances, row_of
from ptq_cli.monitoring.run_drift import DriftResult
from ptq_cli.recipe.recipe_layers import file_layer, merge_layers
from ptq_cli.runtime.session import Session
from ptq_cli.setup.run_directory import RunDirectory

SAMPLES = Path(__file__).parent.parent / "sample_models"
ITEMS, DRAWS, GROUP = 1000, 100, 8
FEW, MANY = 128, 448
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
STD = np.array([0.2470, 0.2435, 0.2616], np.float32)
GAINS, WHOLE_GAIN = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25), 1.1

Arrays = dict[str, npt.NDArray[np.float32]]
Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample model with its data, and what moves them by a factor.

    Attributes:
        mixed: the speakers of its calibration are not those of its evaluation, so that both are drawn from
            all recordings.
    """

    name: str
    read: Callable[[Path], Arrays]
    calibration: str
    evaluation: str
    move: Callable[[Arrays, float], Arrays]
    what: str
    mixed: bool = False


def images(folder: Path) -> Arrays:
    """Return the normalized images of a folder of classes, as the sample's recipe reads them."""
    found = [
        np.asarray(Image.open(path).convert("RGB"), np.float32) / 255 for path in sorted(folder.glob("*/*"))
    ]
    return {"image": np.ascontiguousarray(((np.stack(found) - MEAN) / STD).transpose(0, 3, 1, 2))}


def recordings(path: Path) -> Arrays:
    """Return the features and masks of a file."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in ("features", "mask")}


def brighter(arrays: Arrays, factor: float) -> Arrays:
    """Return images whose pixels are multiplied, and clipped as a camera does."""
    mean, std = MEAN[:, None, None], STD[:, None, None]
    pixels = np.clip((arrays["image"] * std + mean) * np.float32(factor), 0, 1)
    return {"image": (pixels - mean) / std}


def expanded(arrays: Arrays, factor: float) -> Arrays:
    """Return recordings whose loudness in decibels varies by so much more or less."""
    return {**arrays, "features": arrays["features"] * np.float32(factor)}


CIFAR = Sample(
    name="cifar10_cnn",
    read=images,
    calibration="calib",
    evaluation="eval",
    move=brighter,
    what="brightness",
)
DIGITS = Sample(
    name="spoken_digits_transformer",
    read=recordings,
    calibration="calib.npz",
    evaluation="eval.npz",
    move=expanded,
    what="gain of the microphone",
    mixed=True,
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure what ptq drift finds, and what it costs.")
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for sample in (CIFAR, DIGITS):
            runs[sample] = Path(folder) / sample.name
            data = ["--data", str(mixed_calibration(sample, Path(folder)))] if sample.mixed else []
            run_ptq(["calibrate", *data, "--run", str(runs[sample])], SAMPLES / sample.name)
            run_ptq(["export", "--run", str(runs[sample])], SAMPLES / sample.name)
        # Away from the samples, whose recipes would say how data are read.
        os.chdir(folder)
        for name, header, measure in PARTS:
            lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
            rows = (row for sample, run in runs.items() for row in measure(sample, run))
            print_part(name, (*lines, *(f"| {' | '.join(row)} |" for row in rows)), write=write)
        os.chdir(SAMPLES)


def compared(run: Path, arrays: Arrays, **settings: Any) -> Drift:
    """Compare arrays with a run's calibration."""
    result: DriftResult = ptq_cli.drift(arrays, run=run, threads=1, **settings)
    return result.drift


def drawn(arrays: Arrays, seed: int, count: int = ITEMS) -> Arrays:
    """Return items drawn without replacement."""
    order = np.random.default_rng(seed).permutation(len(next(iter(arrays.values()))))[:count]
    return {name: array[order] for name, array in arrays.items()}


def parts_of(sample: Sample) -> tuple[Arrays, Arrays]:
    """Return what a sample is calibrated on, and other items."""
    old, new = (sample.read(SAMPLES / sample.name / part) for part in (sample.calibration, sample.evaluation))
    if not sample.mixed:
        return old, new
    count = len(next(iter(old.values())))
    both = {name: np.concatenate([old[name], new[name]]) for name in old}
    both = drawn(both, seed=0, count=len(next(iter(both.values()))))
    first, rest = (
        {name: array[part] for name, array in both.items()} for part in (slice(count), slice(count, None))
    )
    return first, rest


def mixed_calibration(sample: Sample, folder: Path) -> Path:
    """Write what a sample is calibrated on, and return the file."""
    path = folder / "calib.npz"
    np.savez(path, **cast("dict[str, Any]", parts_of(sample)[0]))
    return path


def detection(sample: Sample, run: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each factor, looking at the inputs alone, and one for the whole model."""
    arrays = drawn(parts_of(sample)[1], seed=0)
    for factor, inputs_only in (*((gain, True) for gain in GAINS), (WHOLE_GAIN, False)):
        drift = compared(run, sample.move(arrays, factor), inputs_only=inputs_only)
        movement, expected = drift.tensors[0].movement, drift.expected
        if movement is None or movement.chance is None or expected is None:
            raise RuntimeError("the sample's calibration has no histograms")
        yield (
            sample.name,
            f"{sample.what} x {factor:g}",
            "inputs" if inputs_only else "all",
            drift.verdict,
            f"{len(drift.moved)} of {len(drift.tensors)}",
            f"{movement.distance:.1f}",
            f"{movement.chance:.1f}",
            f"{100 * max(item.clipped for item in drift.tensors):.2g} %",
            f"{expected.sqnr_db:.1f} dB",
        )


def rows_of(run: Path, arrays: Arrays) -> tuple[dict[str, Rows], dict[str, Grid]]:
    """Return the rows that groups of items leave of each tensor, and the grids."""
    kept: list[Mapping[str, Rows]] = []
    grids: dict[str, Grid] = {}
    plain = Seen.add

    def add(self: Seen, found: Any, rows: Mapping[str, Rows], batch: Any) -> None:
        kept.append(rows)
        grids.update(self.grids)
        plain(self, found, rows, batch)

    whole = len(next(iter(arrays.values()))) // GROUP * GROUP
    with mock.patch.object(Seen, "add", add):
        compared(run, {name: array[:whole] for name, array in arrays.items()}, batch_size=GROUP)
    return {name: np.array([rows[name] for rows in kept]) for name in kept[0]}, grids


def false_alarms(sample: Sample, run: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of calibration: the run's own, or items drawn from the same data."""
    old, new = parts_of(sample)
    both = {name: np.concatenate([new[name], old[name]]) for name in new}
    size = len(next(iter(new.values())))
    calibration = load_calibration(RunDirectory(run).calibration)
    count = calibration.provenance.samples
    # With no more new items than are drawn, each draw would be the whole set.
    used = new if size > ITEMS else both
    rows, grids = rows_of(run, drawn(used, seed=0, count=len(next(iter(used.values())))))
    own = {name: row_of(grid, calibration.statistics[name]) for name, grid in grids.items()}
    if used is new:
        yield (sample.name, f"its own, {count} items", "all", *_draws(rows, grids, count, own))
    else:
        yield (sample.name, f"{count} items of the same data", "all", *_draws(rows, grids, count, None))
    first = dict([next(iter(grids.items()))])
    cells = _draws({name: rows[name] for name in first}, first, 64, None)
    yield (sample.name, "64 items of the same data", "inputs", *cells)


def _draws(
    rows: Mapping[str, Rows], grids: Mapping[str, Grid], count: int, own: Mapping[str, Rows] | None
) -> tuple[str, ...]:
    """Return the cells of all draws: how many there are, alarms, and how near they came to one."""
    ratios, alarms = [], 0
    for seed in range(DRAWS):
        order = np.random.default_rng(seed).permutation(len(next(iter(rows.values()))))
        first = 0 if own is not None else count // GROUP
        calibrated = own or {name: found[order[:first]].sum(axis=0) for name, found in rows.items()}
        groups, blocks = order[first : first + ITEMS // GROUP], Blocks()
        for start in range(0, len(groups), 4):
            part = groups[start : start + 4]
            blocks.add({name: found[part].sum(axis=0) for name, found in rows.items()}, GROUP * len(part))
        chance = chance_of(blocks, grids, count).distances
        far = {
            name: float(distances(grid, blocks.rows(name).sum(axis=0), calibrated[name]))
            for name, grid in grids.items()
        }
        alarms += any(far[name] > max(chance[name], LEAST_DISTANCE) for name in grids)
        ratios.append(max(far[name] / chance[name] for name in grids if chance[name] > 0))
    return str(DRAWS), str(alarms), f"{max(ratios):.2f}", f"{np.median(ratios):.2f}"


def cost(sample: Sample, run: Path) -> Iterator[tuple[str, ...]]:
    """Yield the row of processor times."""
    source = SAMPLES / sample.name / sample.evaluation
    arrays = sample.read(source)
    session = Session(read_model(RunDirectory(run).float_model), threads=1)
    recipe = merge_layers([file_layer(RunDirectory(run).recipe)])

    def forward(count: int) -> None:
        for start in range(0, count, 32):
            session.run({name: array[start : min(start + 32, count)] for name, array in arrays.items()})

    def read(count: int) -> None:
        dataset = open_dataset(str(source), recipe.image, recipe.text, samples=count)
        for _ in dataset.batches(32):
            pass

    def drift(count: int) -> None:
        ptq_cli.drift(source, run=run, threads=1, samples=count)

    def inputs(count: int) -> None:
        ptq_cli.drift(source, run=run, threads=1, samples=count, inputs_only=True)

    whole, through, reading, alone = map(_of_an_item, (forward, drift, read, inputs))
    yield (
        sample.name,
        f"{whole[0]:.2f} ms",
        f"{through[0]:.2f} ms, {through[0] / whole[0]:.1f} times as much",
        f"{reading[0]:.2f} ms",
        f"{alone[0]:.2f} ms",
        f"{through[1]:.1f} s",
    )


def _of_an_item(work: Callable[[int], None]) -> tuple[float, float]:
    """Return the milliseconds that a further item takes, and the seconds that are there without any."""
    work(FEW)
    few, many = (
        min(seconds(partial(work, count), time.process_time) for _ in range(2)) for count in (FEW, MANY)
    )
    each = (many - few) / (MANY - FEW)
    return 1e3 * each, few - FEW * each


PARTS: tuple[tuple[str, tuple[str, ...], Callable[[Sample, Path], Iterator[tuple[str, ...]]]], ...] = (
    (
        "drift_alarms",
        (
            "sample",
            "calibration",
            "tensors",
            "draws",
            "alarms",
            "distance over chance, at most",
            "of half the draws",
        ),
        false_alarms,
    ),
    (
        "drift_detection",
        (
            "sample",
            "data",
            "tensors",
            "verdict",
            "moved",
            "most by",
            "chance",
            "clipped at most",
            "expected SQNR",
        ),
        detection,
    ),
    (
        "drift_cost",
        ("sample", "forward pass", "`ptq drift`", "reading", "`--inputs-only`", "fixed"),
        cost,
    ),
)

if __name__ == "__main__":
    main()

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
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
from PIL import Image

import ptq_cli
from benchmarks.results_page import is_to_write, print_part
from benchmarks.timing import run_ptq
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.evaluation.compared_drift import Seen
from ptq_cli.evaluation.document.drift_document import Drift
from ptq_cli.evaluation.drift import LEAST_DISTANCE, Blocks, Grid, chance_of, distances, row_of
from ptq_cli.models.files.stored import read_model
from ptq_cli.pipeline.run_drift import DriftResult
from ptq_cli.pipeline.setup.run_directory import RunDirectory
from ptq_cli.runtime.session import Session

SAMPLES = Path(__file__).parent.parent / "sample_models"
ITEMS, DRAWS, BLOCK = 1000, 100, 31
MEAN, STD = np.float32([0.4914, 0.4822, 0.4465]), np.float32([0.2470, 0.2435, 0.2616])
GAINS = (0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2)

Arrays = dict[str, npt.NDArray[np.float32]]
Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample model with its data, and what moves them by a factor."""

    name: str
    read: Callable[[Path], Arrays]
    calibration: str
    evaluation: str
    move: Callable[[Arrays, float], Arrays]
    what: str


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
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Measure what ptq drift finds, and what it costs.")
    found = ["| sample | data | verdict | tensors that moved | most by | chance | clipped at most | SQNR |"]
    found += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    silent = [
        "| sample | calibration | draws | alarms | distance ÷ chance, at most | and of half the draws |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    costs = [
        "| sample | forward pass | drift | reading | inputs only | fixed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for sample in (CIFAR, DIGITS):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            here = SAMPLES / sample.name
            run_ptq(["calibrate", "--run", str(run)], here)
            run_ptq(["export", "--run", str(run)], here)
            os.chdir(folder)
            found += detection(sample, run)
            silent += false_alarms(sample, run)
            costs += [cost(sample, run)]
            os.chdir(SAMPLES)
    print_part("drift_detection", found, write=write)
    print_part("drift_alarms", silent, write=write)
    print_part("drift_cost", costs, write=write)


def compared(run: Path, arrays: Arrays, **settings: object) -> Drift:
    """Compare arrays with a run's calibration."""
    result: DriftResult = ptq_cli.drift(arrays, run=run, threads=1, **settings)
    return result.drift


def drawn(arrays: Arrays, seed: int, count: int = ITEMS) -> Arrays:
    """Return items drawn without replacement."""
    order = np.random.default_rng(seed).permutation(len(next(iter(arrays.values()))))[:count]
    return {name: array[order] for name, array in arrays.items()}


def detection(sample: Sample, run: Path) -> Iterator[str]:
    """Yield a row for each factor."""
    arrays = drawn(sample.read(SAMPLES / sample.name / sample.evaluation), seed=0)
    for factor in GAINS:
        drift = compared(run, sample.move(arrays, factor))
        worst = max(drift.tensors, key=lambda item: item.movement.distance / item.movement.chance)  # type: ignore
        movement, expected = worst.movement, drift.expected
        if movement is None or movement.chance is None or expected is None:
            raise RuntimeError("the sample's calibration has no histograms")
        cells = (
            sample.name,
            f"{sample.what} x {factor:g}",
            drift.verdict,
            f"{len(drift.moved)} of {len(drift.tensors)}",
            f"{movement.distance:.1f}",
            f"{movement.chance:.1f}",
            f"{100 * max(item.clipped for item in drift.tensors):.2g} %",
            f"{expected.sqnr_db:.1f} dB",
        )
        yield f"| {' | '.join(cells)} |"


# Draws of data that have not moved: the rows of each item are measured once.


def rows_of(run: Path, arrays: Arrays) -> tuple[dict[str, Rows], Mapping[str, Grid]]:
    """Return the row that each item leaves of each tensor, and the grids."""
    kept: list[dict[str, Rows]] = []
    grids: dict[str, Grid] = {}
    plain = Seen.add

    def add(self: Seen, found: object, rows: dict[str, Rows], batch: object) -> None:
        kept.append(rows)
        grids.update(self.grids)
        plain(self, found, rows, batch)  # type: ignore[arg-type]

    with mock.patch.object(Seen, "add", add):
        compared(run, arrays, batch_size=1)
    return {name: np.array([rows[name] for rows in kept]) for name in kept[0]}, grids


def false_alarms(sample: Sample, run: Path) -> Iterator[str]:
    """Yield a row for each kind of calibration: the run's own, and samples drawn from the same ones."""
    folder = SAMPLES / sample.name
    parts = [sample.read(folder / name) for name in (sample.evaluation, sample.calibration)]
    both = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows, grids = rows_of(run, both)
    total, new = (len(next(iter(item.values()))) for item in (both, parts[0]))
    calibration = load_calibration(RunDirectory(run).calibration)
    own = {name: row_of(grid, calibration.statistics[name]) for name, grid in grids.items()}
    for count in (0, 64, total - new):
        if not count and new <= ITEMS:
            continue  # Every draw would be the whole set.
        ratios = []
        alarms = 0
        for seed in range(DRAWS):
            order = np.random.default_rng(seed).permutation(total if count else new)
            calibrated = (
                {name: found[order[:count]].sum(axis=0) for name, found in rows.items()} if count else own
            )
            items = order[count : count + ITEMS]
            blocks = Blocks()
            for start in range(0, len(items), BLOCK):
                part = items[start : start + BLOCK]
                blocks.add({name: found[part].sum(axis=0) for name, found in rows.items()}, len(part))
            chance = chance_of(blocks, grids, count or calibration.provenance.samples).distances
            found = {
                name: float(distances(grid, blocks.rows(name).sum(axis=0), calibrated[name]))
                for name, grid in grids.items()
            }
            alarms += any(found[name] > max(chance[name], LEAST_DISTANCE) for name in grids)
            ratios.append(max(found[name] / chance[name] for name in grids if chance[name] > 0))
        seen = f"{count} items drawn" if count else f"the run's {calibration.provenance.samples} items"
        cells = (sample.name, seen, str(DRAWS), str(alarms), f"{max(ratios):.2f}", f"{np.median(ratios):.2f}")
        yield f"| {' | '.join(cells)} |"


# What it costs: what further items take, so that opening the model does not count.


def cost(sample: Sample, run: Path) -> str:
    """Return the row of processor times."""
    arrays = sample.read(SAMPLES / sample.name / sample.evaluation)
    source = SAMPLES / sample.name / sample.evaluation
    half = len(next(iter(arrays.values()))) // 2
    session = Session(read_model(RunDirectory(run).float_model), threads=1)

    def forward(count: int) -> None:
        for start in range(0, count, 32):
            session.run({name: array[start : start + 32] for name, array in arrays.items()})

    def drift(count: int) -> None:
        ptq_cli.drift(str(source), run=run, threads=1, samples=count)

    def inputs(count: int) -> None:
        ptq_cli.drift(str(source), run=run, threads=1, samples=count, inputs_only=True)

    def read(count: int) -> None:
        from ptq_cli.calibdata.open_dataset import open_dataset
        from ptq_cli.recipe.recipe_layers import file_layer, merge_layers

        recipe = merge_layers([file_layer(RunDirectory(run).recipe)])
        for _ in open_dataset(str(source), recipe.image, recipe.text, samples=count).batches(31):
            pass

    works = {"forward": forward, "drift": drift, "read": read, "inputs": inputs}
    slopes, fixed = {}, {}
    for name, work in works.items():
        work(half)
        times = [min(seconds_of(work, count) for _ in range(3)) for count in (half, 2 * half)]
        slopes[name] = (times[1] - times[0]) / half
        fixed[name] = times[0] - half * slopes[name]
    ratios = (slopes["drift"] / slopes["forward"], slopes["inputs"] / slopes["read"])
    cells = (
        sample.name,
        f"{1e3 * slopes['forward']:.2f} ms",
        f"{1e3 * slopes['drift']:.2f} ms, {ratios[0]:.1f} times as much",
        f"{1e3 * slopes['read']:.2f} ms",
        f"{1e3 * slopes['inputs']:.2f} ms, {ratios[1]:.1f} times as much",
        f"{fixed['drift']:.1f} s",
    )
    return f"| {' | '.join(cells)} |"


def seconds_of(work: Callable[[int], None], count: int) -> float:
    """Return the processor time of some items."""
    start = time.process_time()
    work(count)
    return time.process_time() - start


if __name__ == "__main__":
    main()

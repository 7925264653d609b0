"""One network's files by ptq and by ``quantize_static``, which take turns: a process of its own.

python -m benchmarks.speed_network FOLDER SCRATCH --samples 32 --seconds 4 --batches 1,8 --threads 1,2

It prints a line of JSON: a ``Network``. If a way of quantizing fails, the network has the reason.
"""

import argparse
import contextlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.zoo_network import Feed, quantize_with_script, reason_of, sqnr_db
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.work.progress import silent
from ptq_cli.pipeline.calibration.run_calibrate import run_calibrate
from ptq_cli.pipeline.exporting.export_result import ExportResult
from ptq_cli.pipeline.exporting.run_export import run_export
from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.plan.target.rules import QUICK_GELU
from ptq_cli.plan.target.target_file import TARGETS
from ptq_cli.report.evaluation.speed.latency import latency_ratio
from ptq_cli.runtime.rounds import take_rounds
from ptq_cli.runtime.sessions.session import Session
from ptq_cli.runtime.turns import Turns

USER, FLOAT, DEFAULT, LATENCY = "user's file", "prepared float", "default", "prefer latency"
PLAIN, THEIRS, RUNTIME = "without rewrites", "quantize_static", "runtime operators"
REWRITES = {
    'name = "ort-cpu"\n': 'name = "without-rewrites"\n',
    '[op.HardSwish]\nkind = "join"\ninteger_form = "clamped_sum"\n': "",
    "\nchannel_multiple = 4\n": "\n",
    "\nchannel_multiple = 16\n": "\n",
    "\njoin_axes = true\n": "\n",
}
"""Parts of the table of ``ort-cpu`` that rewrite a model for speed, and what stands there without them."""
FAST = 0.1
"""The quantile of the runs that is compared with what was expected: that is what a profile measures, too."""
BATCHES = 4
"""How many batches of the evaluation data take turns."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the file that ``--prefer latency`` wrote is as another: above 1, it is faster.

    Attributes:
        processor: in processor time.
        low, high: the 95 % interval of that.
        wall: by the clock.
    """

    processor: float
    low: float
    high: float
    wall: float

    @property
    def inverted(self) -> "Ratio":
        """How many times as fast the other file is."""
        return Ratio(1 / self.processor, 1 / self.high, 1 / self.low if self.low else math.inf, 1 / self.wall)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a network at one batch size and number of threads.

    Attributes:
        batch, threads: of the runs.
        ratios: by the name of the other file.
        in_float: how many layers stay in float because they are faster so.
        all_float: whether no layer is in integers, because the float model is faster than any mix.
        undecided: why nothing was decided by time; empty otherwise.
        sqnr: of the file, in dB.
        seconds: that the profile and the cut took.
        expected, found: microseconds of a run: as the profile says, and as it was in the turns.
    """

    batch: int
    threads: int
    ratios: dict[str, Ratio]
    in_float: int
    all_float: bool
    undecided: str
    sqnr: float
    seconds: float
    expected: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Network:
    """What was measured of a network.

    Attributes:
        name: of its folder.
        layers: how many layers are in integers by default.
        sqnr: in dB against the user's file, of the worst output, by the name of the file.
        failed: why there is no such file, by its name.
        measured: by batch and threads.
    """

    name: str
    layers: int
    sqnr: dict[str, float]
    failed: dict[str, str] = field(default_factory=dict)
    measured: list[Measured]


class Maker:
    """Makes the files of a network, which is calibrated once.

    Args:
        folder: holds ``model.onnx``, ``calib.npz`` and ``eval.npz``.
        scratch: an empty folder for the files.
        samples: how many to calibrate and to evaluate with, at most.
    """

    def __init__(self, folder: Path, scratch: Path, samples: int) -> None:
        self.user, self._scratch, self._run = folder / "model.onnx", scratch, RunDirectory(scratch / "run")
        settings: dict[str, object] = {"data": str(folder / "calib.npz"), "samples": samples}
        run_calibrate(Request(settings=settings, model=self.user, folder=scratch), self._run, silent)
        with np.load(folder / "eval.npz") as arrays:
            self._arrays = {name: array[:samples] for name, array in arrays.items()}
        self._expected = self._outputs(self.user)

    @property
    def prepared(self) -> Path:
        """The float model as ptq prepares it."""
        return self._run.float_model

    def export(self, name: str, **settings: object) -> tuple[ExportResult, float]:
        """Write a file, and return the result and how many seconds that took."""
        began = time.perf_counter()
        request = Request(settings=settings, folder=self._scratch)
        result = run_export(request, self._run, self._scratch / f"{name}.onnx", reset=True)
        return result, time.perf_counter() - began

    @cached_property
    def has_runtime_operators(self) -> bool:
        """Whether ``--runtime-operators`` changes something."""
        result, _ = self.export(RUNTIME, runtime_operators=True)
        return any(layer.written_as == QUICK_GELU for layer in result.plan.layers)

    def feeds(self, batch: int) -> list[Feed]:
        """Return some batches of the evaluation data."""
        count = min(map(len, self._arrays.values())) // batch
        return [
            {name: array[index * batch : (index + 1) * batch] for name, array in self._arrays.items()}
            for index in range(count)
        ]

    def sqnr(self, file: Path) -> float:
        """Return the SQNR of a file's worst output, in dB."""
        pairs = zip(zip(*self._expected, strict=True), zip(*self._outputs(file), strict=True), strict=True)
        return min(sqnr_db(*pair) for pair in pairs)

    def _outputs(self, file: Path) -> list[list[np.ndarray]]:
        session = Session(file, threads=1)
        return [session.run(feed) for feed in self.feeds(1)]


def main() -> None:
    """Parse the arguments, quantize, measure, and print the result."""
    parser = argparse.ArgumentParser(description="Measure the speed of one network's files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batches", type=numbers, required=True)
    parser.add_argument("--threads", type=numbers, required=True)
    onnxruntime.set_default_logger_severity(3)  # Its optimizer warns of much in old files.
    logging.disable(logging.WARNING)  # quantize_static recommends the preprocessing that was already done.
    print(json.dumps(asdict(measure_network(**vars(parser.parse_args())))), flush=True)


def numbers(text: str) -> list[int]:
    """Return numbers that are separated by commas.

    Example:
        >>> numbers("1,8")
        [1, 8]
    """
    return [int(part) for part in text.split(",")]


def without_rewrites() -> str:
    """Return the table of ``ort-cpu`` as it would be without any rewrite for speed.

    Raises:
        ValueError: the table has no such part any more.
    """
    text = (TARGETS / "ort-cpu.toml").read_text(encoding="utf-8")
    for part, other in REWRITES.items():
        if part not in text:
            raise ValueError(f"ort-cpu.toml has no part {part!r}")
        text = text.replace(part, other)
    return text


def measure_network(
    folder: Path, scratch: Path, samples: int, seconds: float, batches: Sequence[int], threads: Sequence[int]
) -> Network:
    """Quantize a network in all ways, and measure what runs.

    Args:
        folder: holds ``model.onnx``, ``calib.npz`` and ``eval.npz``.
        scratch: an empty folder for the files.
        samples: how many to calibrate and to evaluate with, at most.
        seconds: how long to measure the speed at each batch and number of threads, about.
        batches: the sizes that are measured.
        threads: the numbers of threads that each size is measured with.
    """
    maker = Maker(folder, scratch, samples)
    target = scratch / "without-rewrites.toml"
    target.write_text(without_rewrites(), encoding="utf-8")
    default, exporting = maker.export(DEFAULT)
    files = {
        USER: maker.user,
        FLOAT: maker.prepared,
        DEFAULT: default.output,
        PLAIN: maker.export(PLAIN, target=str(target))[0].output,
    }
    failed = {}
    try:
        files[THEIRS], _ = quantize_with_script(folder, scratch, samples, unsigned=True)
        Session(files[THEIRS], threads=1).run(maker.feeds(1)[0])
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        failed[THEIRS] = reason_of(error).replace(f"{scratch}/", "")
        files.pop(THEIRS, None)
    measured = []
    for batch in batches:
        if not _takes(maker, batch):
            continue
        for count in threads:
            measured.append(_measure(maker, files, exporting, seconds, batch, count))
    return Network(
        name=folder.name,
        layers=sum(layer.quantized for layer in default.plan.layers),
        sqnr={name: maker.sqnr(files[name]) for name in (DEFAULT, PLAIN, THEIRS) if name in files},
        failed=failed,
        measured=measured,
    )


def _takes(maker: Maker, batch: int) -> bool:
    """Return whether a network takes batches of a size: some fix another one."""
    with contextlib.suppress(RuntimeFailedError):
        Session(maker.user, threads=1).run(maker.feeds(batch)[0])
        return True
    return False


def _measure(
    maker: Maker, files: Mapping[str, Path], exporting: float, seconds: float, batch: int, threads: int
) -> Measured:
    result, taken = maker.export(LATENCY, prefer="latency", serve_batch=batch, threads=threads)
    latency = result.latency
    assert latency is not None  # noqa: S101 - it was asked for
    own, _ = (
        maker.export(RUNTIME, prefer="latency", serve_batch=batch, threads=threads, runtime_operators=True)
        if maker.has_runtime_operators
        else (None, 0.0)
    )
    files = {**files, RUNTIME: own.output} if own is not None else files
    raced = [result.output, *files.values()]
    opening = partial(opened, raced, threads)
    feeds = maker.feeds(batch)[:BATCHES]
    rounds = list(take_rounds(opening, len(raced), feeds, seconds=seconds))
    times = [turns.processors[0] if threads == 1 else turns.seconds[0] for turns in rounds]
    found = np.quantile([run for turns in times for turn in turns for run in turn], FAST)
    return Measured(
        batch=batch,
        threads=threads,
        ratios={name: ratio_of(rounds, index) for index, name in enumerate(files, start=1)},
        in_float=len(latency.in_float),
        all_float=not any(layer.quantized for layer in result.plan.layers),
        undecided=latency.undecided,
        sqnr=maker.sqnr(result.output),
        seconds=taken - exporting,
        expected=latency.expected,
        found=float(found) * 1e6,
    )


def opened(files: Sequence[Path], threads: int, order: Sequence[int]) -> list[Session]:
    """Open a session of each file, in an order, and return them in the files' own."""
    found = {index: Session(files[index], threads=threads) for index in order}
    return [found[index] for index in range(len(files))]


def ratio_of(rounds: Sequence[Turns], index: int) -> Ratio:
    """Return how many times as long a file takes as the first."""
    found = latency_ratio(rounds, index)
    interval = found.processor_interval
    low, high = (interval.low, interval.high) if interval is not None else (0.0, np.inf)
    return Ratio(found.processor, low, high, found.value)


if __name__ == "__main__":
    main()

"""One network's files by ptq and by ``quantize_static``, which take turns: a process of its own.

python -m benchmarks.speed_network FOLDER SCRATCH --samples 32 --seconds 4 --batches 1,8 --threads 1,2

It prints a line of JSON: a ``Network``. If a way of quantizing fails, the network has the reason.
"""

import contextlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.each_network import network_parser
from benchmarks.network_files import RUNTIME, Maker, without_rewrites
from benchmarks.zoo_network import quantize_with_script, reason_of
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.evaluation.latency import latency_ratio
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.timing import Duration, Turns, repeat_with_new_sessions

USER, FLOAT, DEFAULT, LATENCY = "user's file", "prepared float", "default", "prefer latency"
PLAIN, THEIRS = "without rewrites", "quantize_static"
# The quantile of the runs that is compared with what was expected: that is what a profile measures, too.
FAST = 0.1
BATCHES = 4  # How many batches of the evaluation data take turns


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


def main() -> None:
    """Parse the arguments, quantize, measure, and print the result."""
    parser = network_parser("Measure the speed of one network's files.")
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


def measure_network(
    folder: Path, scratch: Path, samples: int, seconds: float, batches: Sequence[int], threads: Sequence[int]
) -> Network:
    """Quantize a network in all ways, and measure what runs."""
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
    rounds = list(repeat_with_new_sessions(opening, len(raced), feeds, Duration(seconds)))
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

"""One network's files by ptq and by NNCF, which take turns on OpenVINO: a process of its own.

python -m benchmarks.openvino_network FOLDER SCRATCH --samples 32 --seconds 4 --batches 1,8

It prints a line of JSON: a ``Network``.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.each_network import network_parser
from benchmarks.speed_network import BATCHES, numbers
from benchmarks.zoo_network import Feed, feeds_of, quantize_with_ptq, sqnr_db
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.latency import LatencyRatio, LatencyTurns, Scenario, opener
from ptq_cli.runtime.openvino import OPEN_VINO
from ptq_cli.runtime.timing import Duration, repeat_with_new_sessions

OURS, THEIRS, FLOAT = range(3)  # The order of the files in the turns


@dataclass(frozen=True)
class Speed:
    """How many times as fast a file is as another, in processor time of one thread.

    Attributes:
        value: above 1, it is faster.
        low, high: the 95 % interval; None of fewer than two turns.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a network at one batch size.

    Attributes:
        batch: samples of a run.
        over_theirs: the file of ptq beside that of NNCF.
        over_float: the file of ptq beside the float network.
        theirs_over_float: the file of NNCF beside the float network.
    """

    batch: int
    over_theirs: Speed
    over_float: Speed
    theirs_over_float: Speed


@dataclass(frozen=True, kw_only=True)
class Network:
    """What was measured of a network.

    Attributes:
        name: of its folder.
        ours_db, theirs_db: SQNR of the worst output on the evaluation data, beside the float network.
        measured: by batch; sizes that the network does not take are left out.
    """

    name: str
    ours_db: float
    theirs_db: float
    measured: list[Measured]


def main() -> None:
    """Parse the arguments, quantize, measure, and print the result."""
    parser = network_parser("Measure one network's files on OpenVINO.")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batches", type=numbers, required=True)
    print(json.dumps(asdict(measure_network(**vars(parser.parse_args())))), flush=True)


def measure_network(
    folder: Path, scratch: Path, samples: int, seconds: float, batches: Sequence[int]
) -> Network:
    """Quantize a network in both ways, and measure the files."""
    files = [
        quantize_with_ptq(folder, scratch, samples, "--target", "openvino")[0],
        quantize_with_nncf(folder, scratch, samples),
        folder / "model.onnx",
    ]
    alone = list(feeds_of(folder / "eval.npz", samples))
    ours, theirs, expected = (_outputs(file, alone) for file in files)
    measured = [
        _measured(files, feeds, batch, seconds)
        for batch in batches
        if (feeds := _batches(alone, batch)) and _takes(files[FLOAT], feeds[0])
    ]
    return Network(
        name=folder.name,
        ours_db=_worst_db(expected, ours),
        theirs_db=_worst_db(expected, theirs),
        measured=measured,
    )


def quantize_with_nncf(folder: Path, scratch: Path, samples: int) -> Path:
    """Run ``nncf.quantize`` with its defaults on the same samples, and return the file.

    What it leaves in float stays in float32, and is not halved as OpenVINO's ``save_model`` would by default.
    """
    import nncf
    import openvino

    # It prints how far it is.
    with contextlib.redirect_stdout(None):
        network = openvino.Core().read_model(str(folder / "model.onnx"))
        feeds = list(feeds_of(folder / "calib.npz", samples))
        quantized = nncf.quantize(network, nncf.Dataset(feeds), subset_size=len(feeds))
    file = scratch / "theirs.xml"
    openvino.save_model(quantized, str(file), compress_to_fp16=False)
    return file


def _outputs(file: Path, feeds: Sequence[Feed]) -> list[Sequence[Array]]:
    opened = OPEN_VINO.open(file, threads=1)
    return [opened.run(feed) for feed in feeds]


def _worst_db(expected: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float:
    pairs = zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
    return min(sqnr_db(*pair) for pair in pairs)


def _batches(alone: Sequence[Feed], size: int) -> list[Feed]:
    """Return some whole batches of samples."""
    groups = [alone[start : start + size] for start in range(0, len(alone) - size + 1, size)]
    return [
        {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}
        for group in groups[:BATCHES]
    ]


def _takes(file: Path, feed: Feed) -> bool:
    """Return whether a network takes batches of a size: some fix another one."""
    with contextlib.suppress(RuntimeFailedError):
        OPEN_VINO.open(file, threads=1).run(feed)
        return True
    return False


def _measured(files: Sequence[Path], feeds: Sequence[Feed], batch: int, seconds: float) -> Measured:
    opening = opener(files, Scenario(feeds, threads=1, engine=OPEN_VINO))
    turns = LatencyTurns(
        list(repeat_with_new_sessions(opening, len(files), feeds, Duration(seconds))), threads=1
    )
    return Measured(
        batch=batch,
        over_theirs=_speed(turns.ratio(THEIRS, OURS)),
        over_float=_speed(turns.ratio(FLOAT, OURS)),
        theirs_over_float=_speed(turns.ratio(FLOAT, THEIRS)),
    )


def _speed(ratio: LatencyRatio) -> Speed:
    interval = ratio.interval
    return Speed(ratio.value, *((interval.low, interval.high) if interval is not None else (None, None)))


if __name__ == "__main__":
    main()

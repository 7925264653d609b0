"""One network of a zoo, quantized with defaults and tuned to a budget above that: a process of its own.

python -m benchmarks.tune_network FOLDER SCRATCH --samples 48 --gain 6 --rungs equalize,round

It prints a line of JSON: a ``TunedRow`` of the table.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.each_network import network_parser
from benchmarks.zoo_network import Judge, quantize_with_ptq
from ptq_cli.models.files.stored import read_model

MARGIN = 1.5  # How much more is asked of the held-out samples than is wanted on the evaluation data, in dB
PROVING = 21  # Samples to set aside at least: ``ptq tune`` asks for 20
MISSED = 3  # Exit status of a budget that is missed


@dataclass(frozen=True, kw_only=True)
class TunedRow:
    """The result for a network.

    Attributes:
        before, after: SQNR of the worst output on the evaluation data, in dB.
        goal_db: SQNR of the worst output that the candidate was made for; None for the default's.
        size_before, size_after: of the files, as shares of the float file's.
        work_before, work_after: shares of the multiply-accumulates in integers; None if they cannot be
            counted.
        rungs, in_16_bits, dynamic, in_float: of the candidate that was chosen.
        met: the budget was shown to be kept.
        seconds: that the tuning took.
    """

    before: float
    after: float
    size_before: float
    size_after: float
    work_before: float | None
    work_after: float | None
    rungs: list[str]
    goal_db: float | None
    in_16_bits: list[str]
    dynamic: list[str]
    in_float: list[str]
    met: bool
    seconds: float


def main() -> None:
    """Parse the arguments, quantize, tune, and print the row."""
    parser = network_parser("Tune one network, and measure what that brings.")
    parser.add_argument("--gain", type=float, required=True)
    parser.add_argument("--rungs", required=True)
    parser.add_argument("--time-budget", default="")
    onnxruntime.set_default_logger_severity(3)  # Its optimizer warns of much in old files.
    print(json.dumps(asdict(measure(**vars(parser.parse_args())))), flush=True)


def measure(
    folder: Path, scratch: Path, samples: int, gain: float, rungs: str, time_budget: str = ""
) -> TunedRow:
    """Quantize a network with defaults, and tune it."""
    judge = Judge(folder, samples)
    default = judge.compare(quantize_with_ptq(folder, scratch, samples)[0], "")
    begin = time.perf_counter()
    _tune(folder, scratch, samples, default.sqnr_db + gain + MARGIN, rungs, time_budget)
    seconds = time.perf_counter() - begin
    ladder = json.loads((scratch / "tuned" / "tune.json").read_text("utf-8"))
    best, met = ladder["steps"][ladder["chosen"]], ladder["met"]
    tuned = judge.compare(scratch / "tuned" / "model_int8.onnx", "")
    return TunedRow(
        before=default.sqnr_db,
        after=tuned.sqnr_db,
        size_before=default.size,
        size_after=tuned.size,
        work_before=default.integer_share,
        work_after=tuned.integer_share,
        rungs=best["rungs"],
        goal_db=best["goal_db"],
        in_16_bits=best["in_16_bits"],
        dynamic=best["dynamic"],
        in_float=best["in_float"],
        met=met,
        seconds=seconds,
    )


def _tune(folder: Path, scratch: Path, samples: int, wanted: float, rungs: str, time_budget: str) -> None:
    """Tune every output to the same SQNR; a budget that is missed leaves the best, too."""
    outputs = read_model(folder / "model.onnx").load().graph.outputs
    names = [f"sqnr_db[{value.name}]" for value in outputs] if len(outputs) > 1 else ["sqnr_db"]
    with np.load(folder / "calib.npz") as arrays:
        count = min(samples, *(len(array) for array in arrays.values()))
    words = ["tune", str(folder / "model.onnx"), "--data", str(folder / "calib.npz"), "--samples", str(count)]
    words += [word for name in names for word in ("--budget", f"{name}={wanted:.3f}")]
    words += [
        "--set",
        f"calibration.set_aside={min(0.9, max(0.5, PROVING / count)):.3f}",
        "--set",
        f"recovery.rungs={rungs}",
    ]
    words += ["--time-budget", time_budget] if time_budget else []
    command = [sys.executable, "-m", "ptq_cli", *words, "--run", "tuned"]
    done = subprocess.run(command, cwd=scratch, check=False, capture_output=True, text=True)
    if done.returncode not in (0, MISSED):
        raise RuntimeError(done.stderr.strip())


if __name__ == "__main__":
    main()

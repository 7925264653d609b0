"""One network of a zoo, quantized by ptq and by ONNX Runtime's ``quantize_static``: a process of its own.

python -m benchmarks.zoo_network FOLDER SCRATCH --samples 64 --seconds 10

It prints a line of JSON: a ``Row`` of the table. If a way of quantizing fails, the row has the reason.
"""

import contextlib
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.each_network import network_parser
from benchmarks.timing import run_ptq
from benchmarks.zoo_metrics import Labels, task_of
from ptq_cli.core.errors import first_line
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.latency import Scenario, measure_latencies
from ptq_cli.evaluation.metrics.value_errors import Sqnr, WorstChannelSqnr
from ptq_cli.runtime.session import Session
from ptq_cli.setup.run_directory import RunDirectory

Feed = dict[str, Array]
LONGEST_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A quantized network compared with the float one.

    Attributes:
        task: the metric of its task, in words.
        sqnr_db: of the worst output.
        worst_channel_db: SQNR of the worst channel of all outputs; None if no output has channels.
        size: of the file, as a share of the float file's.
        integer_share: of the multiply-accumulates; None if it cannot be counted.
        note: what was left out to make it.
        speed: processor time of the float network over its own, with one thread.
    """

    task: str
    sqnr_db: float
    worst_channel_db: float | None
    size: float
    integer_share: float | None
    note: str
    speed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result for a network.

    Attributes:
        network: name of its folder.
        samples: number of samples in the evaluation.
        task: the float network's metric, in words; empty if it has no task.
        ours, theirs: the quantized networks, or why there is none.
    """

    network: str
    samples: int
    task: str
    ours: Quantized | str
    theirs: Quantized | str


class Judge:
    """Compares networks with the float one of a folder, on samples of its evaluation data."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.network, self._evaluation = folder / "model.onnx", folder / "eval.npz"
        self.feeds = list(feeds_of(self._evaluation, samples))
        labels = folder / "labels.json"
        self._labels: Labels = json.loads(labels.read_text("utf-8")) if labels.exists() else {}
        self._task = task_of(folder.name, self._labels)
        self._expected = self._outputs(self.network)

    def _outputs(self, file: Path) -> list[list[Array]]:
        session = Session(file, threads=1)
        return [session.run(feed) for feed in self.feeds]

    def tell_task(self, outputs: Sequence[Sequence[Array]] | None = None) -> str:
        """Return the metric of the task, in words: of these outputs, or of the float network's own."""
        if self._task is None:
            return ""
        of_float = [self._task.keep(found[0]) for found in self._expected]
        kept = of_float if outputs is None else [self._task.keep(found[0]) for found in outputs]
        return self._task.tell(kept, of_float, self._labels)

    def compare(self, file: Path, note: str) -> Quantized:
        """Run a quantized network on all samples, and compare it with the float one."""
        outputs = self._outputs(file)
        pairs = list(zip(zip(*self._expected, strict=True), zip(*outputs, strict=True), strict=True))
        channels = [value for pair in pairs if (value := _worst_channel_db(*pair)) is not None]
        return Quantized(
            task=self.tell_task(outputs),
            sqnr_db=min(sqnr_db(*pair) for pair in pairs),
            worst_channel_db=min(channels, default=None),
            size=file.stat().st_size / self.network.stat().st_size,
            integer_share=_integer_share(file, self._evaluation),
            note=note,
        )

    def speeds(self, files: Sequence[Path], seconds: float) -> list[float]:
        """Return how many times as fast as the float network the others are: all take turns."""
        (latency,) = measure_latencies([self.network, *files], [Scenario(self.feeds, 1)], seconds=seconds)
        return [1 / ratio.processor for ratio in latency.ratios]


def main() -> None:
    """Parse the arguments, quantize, measure, and print the row."""
    parser = network_parser("Quantize one network, and measure the result.")
    parser.add_argument("--seconds", type=float, required=True)
    onnxruntime.set_default_logger_severity(3)  # Its optimizer warns of much in old files.
    logging.disable(logging.WARNING)  # quantize_static recommends the preprocessing that was already done.
    print(json.dumps(asdict(measure(**vars(parser.parse_args())))), flush=True)


def measure(folder: Path, scratch: Path, samples: int, seconds: float) -> Row:
    """Quantize a network in both ways, and measure what runs."""
    judge = Judge(folder, samples)
    found: list[Quantized | str] = []
    files: list[Path] = []
    for quantize in (quantize_with_ptq, quantize_with_script):
        try:
            file, note = quantize(folder, scratch, samples)
            found.append(judge.compare(file, note))
            files.append(file)
        except Exception as error:  # noqa: BLE001 - the other way is measured all the same
            found.append(reason_of(error).replace(f"{scratch}/", ""))
    speeds = iter(judge.speeds(files, seconds))
    ours, theirs = (item if isinstance(item, str) else replace(item, speed=next(speeds)) for item in found)
    return Row(
        network=folder.name, samples=len(judge.feeds), task=judge.tell_task(), ours=ours, theirs=theirs
    )


def feeds_of(path: Path, samples: int) -> Iterator[Feed]:
    """Yield the first samples of an ``.npz`` file, one at a time: some networks take no more."""
    with np.load(path) as arrays:
        whole = dict(arrays)
    for index in range(min(samples, *map(len, whole.values()))):
        yield {name: array[index : index + 1] for name, array in whole.items()}


def quantize_with_ptq(folder: Path, scratch: Path, samples: int, *flags: str) -> tuple[Path, str]:
    """Run ``ptq quantize`` with its defaults but for some flags; return the file, with nothing left out."""
    words = [str(folder / "model.onnx"), "--data", str(folder / "calib.npz"), "--samples", str(samples)]
    run_ptq(["quantize", *words, *flags, "--set", "evaluation.latency=false", "--run", "run"], scratch)
    return RunDirectory(scratch / "run").quantized_model, ""


def quantize_with_script(
    folder: Path, scratch: Path, samples: int, *, unsigned: bool = False
) -> tuple[Path, str]:
    """Run ONNX Runtime's ``quantize_static`` after its preprocessing, with Q/DQ per channel."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._feeds = feeds_of(folder / "calib.npz", samples)

        def get_next(self) -> Feed | None:
            return next(self._feeds, None)

    network, prepared, file = (
        str(path) for path in (folder / "model.onnx", scratch / "prepared.onnx", scratch / "theirs.onnx")
    )
    note = ""
    # Its symbolic shape inference prints, and writes unfinished results to the current folder.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(scratch):
        warnings.simplefilter("ignore")
        try:
            quant_pre_process(network, prepared)
        except Exception as error:  # noqa: BLE001 - it raises Exception itself
            note = f"without symbolic shapes: {first_line(error)}"
            quant_pre_process(network, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            file,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8 if unsigned else QuantType.QInt8,
        )
    return Path(file), note


def sqnr_db(wanted: Iterable[Array], found: Iterable[Array]) -> float:
    """Return the SQNR of an output over all batches, in dB."""
    sqnr = Sqnr()
    for exact, noisy in zip(wanted, found, strict=True):
        sqnr.update(exact.reshape(1, -1), noisy.reshape(1, -1))
    return sqnr.compute()


def _worst_channel_db(wanted: Sequence[Array], found: Sequence[Array]) -> float | None:
    if not WorstChannelSqnr.accepts(wanted[0], 1):
        return None
    worst = WorstChannelSqnr()
    for exact, noisy in zip(wanted, found, strict=True):
        worst.update(exact, noisy)
    return worst.compute()


def _integer_share(file: Path, data: Path) -> float | None:
    command = [sys.executable, "-m", "ptq_cli", "verify", str(file), "--data", str(data), "--json"]
    done = subprocess.run(command, cwd=file.parent, check=False, capture_output=True, text=True)
    # Exit status 3: a rule of the target is broken, as in files that others wrote.
    return float(json.loads(done.stdout)["integer_share"]) if done.returncode in (0, 3) else None


def reason_of(error: Exception) -> str:
    """Return an error in a line."""
    if isinstance(error, subprocess.CalledProcessError):
        text = error.stderr if isinstance(error.stderr, str) else error.stderr.decode()
        lines = [line for line in text.splitlines() if line.startswith(("error", "bug"))]
        return lines[0] if lines else f"exit status {error.returncode}"
    return first_line(error, LONGEST_REASON)


if __name__ == "__main__":
    main()

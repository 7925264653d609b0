"""Speed and accuracy of our int8 models compared with those of ``onnxruntime.quantization.quantize_static``.

python -m benchmarks.static_quantization            print the table
python -m benchmarks.static_quantization --write    also write it to benchmarks/RESULTS.md
python -m benchmarks.static_quantization --case cnn --seconds 5    one case, with less time per case

Both quantize the same float model on the same samples. Theirs has its best setting: uint8 activations, int8
weights per channel, MinMax, and its own preprocessing. The models take turns.
"""

import contextlib
import io
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.models import write_bert, write_images, write_resnet50, write_sequences
from benchmarks.results_page import print_part, processor, result_parser
from benchmarks.timing import run_ptq
from ptq_cli.evaluation.latency import LatencyComparison, LatencyRatio, Scenario, measure_latencies
from ptq_cli.evaluation.metrics.value_errors import Sqnr
from ptq_cli.runtime.machine import usable_cores
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request, open_data, reading_of, resolve

ROOT = Path(__file__).parent.parent
CNN = ROOT / "sample_models" / "cifar10_cnn"
BATCH = 8
OURS = ("--amax", "mse", "--set", "amax.weight_method=mse")
Feed = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A float model, samples for calibration and other samples for the comparison.

    Attributes:
        name: value of ``--case``.
        title: name in the table.
        model: the float model.
        calibration, evaluation: ``.npz`` files.
    """

    name: str
    title: str
    model: Path
    calibration: Path
    evaluation: Path


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The result of a case.

    Attributes:
        sqnr_ours, sqnr_theirs: of the first output, against the float model, in dB.
        latency: of ours, theirs and the float model; the ratios are to ours.
        integer_share: of our multiply-accumulates.
        preprocessing: the part of their preprocessing that failed and was skipped.
    """

    sqnr_ours: float
    sqnr_theirs: float
    latency: LatencyComparison
    integer_share: float
    preprocessing: str


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = result_parser("Compare with onnxruntime.quantization.quantize_static.")
    parser.add_argument("--case", help="run only this case: cnn, resnet50 or bert")
    parser.add_argument("--seconds", type=float, default=40.0, help="seconds to measure each case")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # quantize_static recommends the preprocessing that was already done.
    with tempfile.TemporaryDirectory() as scratch:
        report = _report(Path(scratch), arguments.case, arguments.seconds)
        print_part("static_quantization", report, write=arguments.write)


def _report(scratch: Path, only: str | None, seconds: float) -> Iterator[str]:
    yield from (
        f"`python -m benchmarks.static_quantization --write`, {processor()}, {usable_cores()} threads,"
        f" batches of {BATCH}, `{' '.join(OURS)}`. Above 1, ours is faster.",
        "",
        "| model | speed over theirs | speed over float | SQNR of ours | SQNR of theirs "
        "| integer multiply-accumulates |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    for case in _cases(scratch):
        if only in (None, case.name):
            yield _row(case, _contest(case, scratch / case.name, seconds))


def _row(case: Case, contest: Contest) -> str:
    to_theirs, to_float = contest.latency.ratios
    cells = (
        f"{case.title}{contest.preprocessing}",
        _speed(to_theirs),
        _speed(to_float),
        f"{contest.sqnr_ours:.1f} dB",
        f"{contest.sqnr_theirs:.1f} dB",
        f"{contest.integer_share:.1%}",
    )
    return f"| {' | '.join(cells)} |"


def _speed(ratio: LatencyRatio) -> str:
    """Return the other model's time over ours, as text."""
    interval = ratio.interval
    return f"{ratio.value:.2f}" + (f" ({interval.low:.2f} to {interval.high:.2f})" if interval else "")


def _case(scratch: Path, name: str, title: str) -> Case:
    return Case(
        name=name,
        title=title,
        model=scratch / f"{name}.onnx",
        calibration=scratch / f"{name}_calibration.npz",
        evaluation=scratch / f"{name}_evaluation.npz",
    )


def _cases(scratch: Path) -> Iterator[Case]:
    cnn = _case(scratch, "cnn", "CNN sample")
    run_ptq(["export", "--float", str(CNN / "model.pt"), "-o", str(cnn.model)], CNN)
    write_decoded("calibration", cnn.calibration)
    write_decoded("evaluation", cnn.evaluation)
    yield cnn
    resnet = _case(scratch, "resnet50", "ResNet-50's shape")
    write_resnet50(resnet.model)
    write_images(resnet.calibration, 64)
    write_images(resnet.evaluation, 24, seed=3)
    yield resnet
    bert = _case(scratch, "bert", "BERT's shape, masked")
    write_bert(bert.model, masked=True)
    write_sequences(bert.calibration, 64, 64, masked=True)
    write_sequences(bert.evaluation, 24, 64, masked=True, seed=4)
    yield bert


def write_decoded(part: str, path: Path) -> None:
    """Write the decoded images of the CNN sample."""
    with contextlib.chdir(CNN):
        recipe = resolve(Request(settings={}, model=CNN / "model.pt", folder=CNN)).recipe
        settings = recipe.calibration if part == "calibration" else recipe.evaluation
        images = [
            batch.inputs for batch in open_data(settings, reading_of(recipe), part, "--data").batches(BATCH)
        ]
    np.savez(path, image=np.concatenate([array for batch in images for array in batch.values()]))


def _contest(case: Case, folder: Path, seconds: float) -> Contest:
    folder.mkdir()
    run_ptq(["calibrate", str(case.model), "--data", str(case.calibration), "--method", "histogram"], folder)
    run_ptq(["export", "--onnx", *OURS], folder)
    ours, theirs = folder / "ptq-run" / "model_int8.onnx", folder / "theirs.onnx"
    preprocessing = _quantize_static(case, theirs)
    feeds = list(_feeds(case.evaluation))
    expected = [outputs[0] for outputs in map(Session(case.model).run, feeds)]
    files, scenario = [ours, theirs, case.model], Scenario(feeds, usable_cores())
    return Contest(
        sqnr_ours=_sqnr(expected, ours, feeds),
        sqnr_theirs=_sqnr(expected, theirs, feeds),
        latency=measure_latencies(files, [scenario], seconds=seconds)[0],
        integer_share=_integer_share(ours),
        preprocessing=preprocessing,
    )


def _feeds(path: Path) -> Iterator[Feed]:
    with np.load(path) as arrays:
        whole = dict(arrays)
    count = len(next(iter(whole.values())))
    for begin in range(0, count - count % BATCH, BATCH):
        yield {name: array[begin : begin + BATCH] for name, array in whole.items()}


def _sqnr(expected: list[np.ndarray], model: Path, feeds: list[Feed]) -> float:
    sqnr, session = Sqnr(), Session(model)
    for wanted, feed in zip(expected, feeds, strict=True):
        sqnr.update(wanted, session.run(feed)[0])
    return sqnr.compute()


def _quantize_static(case: Case, path: Path) -> str:
    """Quantize with ONNX Runtime's own script, and return which part of its preprocessing was skipped."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._feeds = _feeds(case.calibration)

        def get_next(self) -> Feed | None:
            return next(self._feeds, None)

    prepared, left_out = path.with_suffix(".prepared.onnx"), ""
    # Its symbolic shape inference writes unfinished results to the current folder.
    quiet = (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.chdir(path.parent),
    )
    with contextlib.ExitStack() as stack:
        for context in quiet:
            stack.enter_context(context)
        warnings.simplefilter("ignore")
        try:
            quant_pre_process(str(case.model), str(prepared))
        except Exception as error:  # noqa: BLE001 - it raises Exception itself
            left_out = f" (their symbolic shape inference fails: {error})"
            quant_pre_process(str(case.model), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return left_out


def _integer_share(model: Path) -> float:
    command = [sys.executable, "-m", "ptq_cli", "verify", str(model), "--json"]
    done = subprocess.run(command, cwd=model.parent.parent, check=True, capture_output=True, text=True)
    share: float = json.loads(done.stdout)["integer_share"]
    return share


if __name__ == "__main__":
    main()

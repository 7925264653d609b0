"""What the default of ``ptq quantize`` brings beside ``--recover none``, and what it costs in forward passes.

python -m benchmarks.defaults                    the sample models
python -m benchmarks.defaults DIR                the networks of a folder, as benchmarks/zoo.py describes it
python -m benchmarks.defaults DIR --only a,b --write    replace the rows of these networks

The cost is processor time above that of ``--recover none``, on one thread: in seconds, and in runs of the
float model over the calibration data, which of small networks take less than a tenth of a second. What a
default has to be: the best that costs at most five passes, and never worse.
"""

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part
from benchmarks.timing import evaluate_run, run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import Judge, feeds_of
from ptq_cli.runtime.session import Session

ROOT = Path(__file__).parent.parent
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer", "shapes_detector")
WAYS = ("none", "auto")
COLUMNS = ("model", "forward pass", *(f"`{way}`" for way in WAYS), *(f"cost of `{way}`" for way in WAYS[1:]))


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = networks_parser("Compare the default with no recovery.", 48, is_optional=True)
    arguments = parser.parse_args()
    folders = find_networks(arguments.folder, arguments.only) if arguments.folder is not None else []
    folders = folders or [ROOT / "sample_models" / name for name in SAMPLES]
    print_part("defaults", _table(folders, arguments.samples), write=arguments.write, keep_rows=True)


def _table(folders: Sequence[Path], samples: int) -> Iterator[str]:
    yield table_line(*COLUMNS)
    yield f"|{'---|' * len(COLUMNS)}"
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            yield _row(folder, Path(scratch), samples)


def _row(folder: Path, scratch: Path, samples: int) -> str:
    is_sample = (folder / "ptq.toml").is_file()
    found = list(_measured_sample(folder, scratch) if is_sample else _measured(folder, scratch, samples))
    decibels, spent = [sqnr for sqnr, _ in found], [taken for _, taken in found]
    forward = forward_pass(scratch / "none" / "model.float.onnx", folder, samples, is_sample=is_sample)
    return table_line(
        folder.name,
        f"{forward:.2f} s",
        *(f"{sqnr:.1f} dB" for sqnr in decibels),
        *(
            f"{max(0.0, taken - spent[0]):.1f} s: {max(0.0, taken - spent[0]) / forward:.1f}"
            for taken in spent[1:]
        ),
    )


def _measured_sample(folder: Path, scratch: Path) -> Iterator[tuple[float, float]]:
    """Yield the SQNR on the evaluation data and the processor time of each way."""
    for way in WAYS:
        run = str(scratch / way)
        words = [
            "quantize",
            "--data",
            "calib.npz",
            "--run",
            run,
            "--recover",
            way,
            "--set",
            "run.evaluate=false",
        ]
        spent = _processor_time(words, folder)
        metrics = {item["name"]: item for item in evaluate_run(run, folder)["metrics"]}
        yield metrics["sqnr_db"]["quantized_value"], spent


def _measured(folder: Path, scratch: Path, samples: int) -> Iterator[tuple[float, float]]:
    """Yield the SQNR of the worst output on the evaluation data and the processor time of each way."""
    judge = Judge(folder, samples)
    for way in WAYS:
        words = ["quantize", str(folder / "model.onnx"), "--data", str(folder / "calib.npz")]
        words += ["--samples", str(samples), "--run", way, "--recover", way, "--set", "run.evaluate=false"]
        spent = _processor_time(words, scratch)
        yield judge.compare(scratch / way / "model.int8.onnx", "").sqnr_db, spent


def _processor_time(words: Sequence[str], folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_ptq([*words, "--threads", "1"], folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def forward_pass(model: Path, folder: Path, samples: int, *, is_sample: bool) -> float:
    """Return the processor time of the float model over the calibration data, in seconds."""
    source = folder / "calib.npz"
    with np.load(source) as arrays:
        count = min(len(array) for array in arrays.values())
    feeds = list(feeds_of(source, count if is_sample else samples))
    session = Session(model, threads=1)
    names = {spec.name for spec in session.inputs}
    fed = [{name: array for name, array in feed.items() if name in names} for feed in feeds]
    session.run(fed[0])
    begin = time.process_time()
    for feed in fed:
        session.run(feed)
    return time.process_time() - begin


if __name__ == "__main__":
    main()

"""Accuracy of the sample models with each amax method: int8 against float.

python -m benchmarks.amax_accuracy            print the table
python -m benchmarks.amax_accuracy --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results_page import is_to_write, print_part
from benchmarks.timing import evaluate_run, run_ptq

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "RESULTS.md"
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
SETTINGS = (
    "--amax max",
    "--amax percentile --set amax.percentile=99.9",
    "--amax percentile --set amax.percentile=99.99",
    "--amax percentile",
    "--amax entropy",
    "--amax mse",
    "--amax percentile --set amax.weight_method=mse",
    "--amax mse --set amax.weight_method=mse",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Compare the amax methods on the sample models.", PAGE)
    lines = [
        "| sample | `ptq export …` | SQNR | top-1 | top-1 agreement |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(row)} |" for sample in SAMPLES for row in rows(sample)]
    print_part("amax_accuracy", lines, write=write, page=PAGE)


def rows(sample: str) -> Iterator[list[str]]:
    """Calibrate a sample once, and yield a row for each method of deciding its ranges."""
    folder = ROOT / "sample_models" / sample
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run], folder)
        for settings in SETTINGS:
            run_ptq(["export", "--run", run, *settings.split()], folder)
            report = evaluate_run(run, folder)
            metrics = {item["name"]: item["quantized_value"] for item in report["metrics"]}
            shares = [f"{metrics[name]:.2%}" for name in ("top1", "top1_agreement")]
            yield [sample, f"`{settings}`", f"{metrics['sqnr_db']:.2f} dB", *shares]


if __name__ == "__main__":
    main()

"""Accuracy of the sample models with each amax method: int8 against float.

python -m benchmarks.amax_accuracy            print the table
python -m benchmarks.amax_accuracy --write    also write it to docs/amax.md
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import evaluate_run, run_ptq
from tools.marked import write_part

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "amax.md"
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
SETTINGS = (
    "--amax max",
    "--amax percentile --percentile 99.9",
    "--amax percentile --percentile 99.99",
    "--amax percentile",
    "--amax entropy",
    "--amax mse",
    "--amax percentile --weight-amax mse",
    "--amax mse --weight-amax mse",
)


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = argparse.ArgumentParser(description="Compare the amax methods on the sample models.")
    parser.add_argument("--write", action="store_true", help="write the table to docs/amax.md")
    write = parser.parse_args().write
    lines = [
        "| sample | `ptq export …` | SQNR | top-1 | top-1 agreement |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(row)} |" for sample in SAMPLES for row in rows(sample)]
    text = "\n".join(lines)
    print(text)
    if write:
        write_part(PAGE, "amax_accuracy", text)


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

"""The sample models with each preset: accuracy, SQNR, file size, and the share of integer layers.

python -m benchmarks.presets            print the table
python -m benchmarks.presets --write    also write it to docs/quantizers.md
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import evaluate_run, run_ptq
from ptq_cli.recipe.recipe_layers import DEFAULT_PRESET, preset_names
from tools.marked import write_part

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "quantizers.md"
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
HEADER = ("sample", "preset", "top-1, float", "top-1", "SQNR", "file", "of float", "integer layers")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    parser = argparse.ArgumentParser(description="Compare the presets on the sample models.")
    parser.add_argument("--write", action="store_true", help="write the table to docs/quantizers.md")
    write = parser.parse_args().write
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    lines += [f"| {' | '.join(row)} |" for sample in SAMPLES for row in rows(sample)]
    text = "\n".join(lines)
    print(text)
    if write:
        write_part(PAGE, "presets", text)


def rows(sample: str) -> Iterator[tuple[str, ...]]:
    """Calibrate a sample once, and yield a row for each preset."""
    folder = ROOT / "sample_models" / sample
    names = [DEFAULT_PRESET, *(name for name in preset_names() if name != DEFAULT_PRESET)]
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run], folder)
        for preset in names:
            run_ptq(["export", "--run", run, "--preset", preset], folder)
            report = evaluate_run(run, folder)
            metrics = {item["name"]: item for item in report["metrics"]}
            size, ratio = report["model"]["quantized_model"]["bytes"], report["model"]["size_ratio"]
            yield (
                sample,
                f"`{preset}`",
                f"{metrics['top1']['float_value']:.2%}",
                f"{metrics['top1']['quantized_value']:.2%}",
                f"{metrics['sqnr_db']['quantized_value']:.2f} dB",
                f"{size / 1000:.0f} kB",
                f"{1 / ratio:.1%}",
                f"{report['quantized_layers']} of {len(report['layers'])}",
            )


if __name__ == "__main__":
    main()

"""The sample models with each preset for ONNX Runtime and measured ranges.

The table has accuracy, SQNR, file size, and the share of integer layers.

python -m benchmarks.presets            print the table
python -m benchmarks.presets --write    also write it to benchmarks/RESULTS.md
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results_page import is_to_write, print_part
from benchmarks.timing import evaluate_run, run_ptq
from ptq_cli.recipe.declaration import STATIC
from ptq_cli.recipe.recipe_layers import DEFAULT_PRESET, SAME_AS, preset_layer, preset_names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "RESULTS.md"
SAMPLES = ("cifar10_cnn", "spoken_digits_transformer")
HEADER = ("sample", "preset", "top-1, float", "top-1", "SQNR", "file", "of float", "integer layers")


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    write = is_to_write("Compare the presets on the sample models.", PAGE)
    lines = [f"| {' | '.join(HEADER)} |", f"| {' | '.join('---' for _ in HEADER)} |"]
    lines += [f"| {' | '.join(row)} |" for sample in SAMPLES for row in rows(sample)]
    print_part("presets", lines, write=write, page=PAGE)


def rows(sample: str) -> Iterator[tuple[str, ...]]:
    """Calibrate a sample once, and yield a row for each preset that works on that calibration."""
    folder = ROOT / "sample_models" / sample
    names = [
        DEFAULT_PRESET,
        *(
            name
            for name in preset_names()
            if name not in (DEFAULT_PRESET, *SAME_AS) and shares_calibration(name)
        ),
    ]
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run], folder)
        for preset in names:
            run_ptq(["export", "--run", run, "--preset", preset], folder)
            report = evaluate_run(run, folder)
            yield cells_of(report, sample, preset)


def cells_of(report: Mapping[str, Any], sample: str, preset: str) -> tuple[str, ...]:
    """Return what a report on a sample with a preset says, as cells of a row."""
    metrics = {item["name"]: item for item in report["metrics"]}
    size, ratio = report["model"]["quantized_model"]["bytes"], report["model"]["size_ratio"]
    return (
        sample,
        f"`{preset}`",
        f"{metrics['top1']['float_value']:.2%}",
        f"{metrics['top1']['quantized_value']:.2%}",
        f"{metrics['sqnr_db']['quantized_value']:.2f} dB",
        f"{size / 1000:.0f} kB",
        f"{1 / ratio:.1%}",
        f"{report['quantized_layers']} of {len(report['layers'])}",
    )


def shares_calibration(preset: str) -> bool:
    """Tell whether a preset works on the default calibration: same target, measured ranges."""
    table = preset_layer(preset).table
    is_static = table.get("activations", {}).get("mode", STATIC) == STATIC
    return bool(is_static and table.get("quantization", {}).get("target", "ort-cpu") == "ort-cpu")


if __name__ == "__main__":
    main()

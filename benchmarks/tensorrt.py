"""Accuracy and size of the sample models with each preset for TensorRT, on ONNX Runtime: no engine is built.

python -m benchmarks.tensorrt
"""

import tempfile

from benchmarks.presets import HEADER, ROOT, SAMPLES, cells_of
from benchmarks.timing import evaluate_run, run_ptq

PRESETS = ("int8", "fp8", "nvfp4", "int4_awq")
CONVOLUTIONS = "cifar10_cnn"
# These quantize products with constant matrices, and a network of convolutions has one.
OF_PRODUCTS = ("nvfp4", "int4_awq")


def main() -> None:
    """Measure, and print the table."""
    print(f"| {' | '.join(HEADER)} |")
    print(f"| {' | '.join('---' for _ in HEADER)} |")
    for sample in SAMPLES:
        for preset in PRESETS:
            if sample != CONVOLUTIONS or preset not in OF_PRODUCTS:
                print(f"| {' | '.join(row(sample, preset))} |", flush=True)


def row(sample: str, preset: str) -> tuple[str, ...]:
    """Quantize a sample with a preset, and return what came out."""
    folder = ROOT / "sample_models" / sample
    with tempfile.TemporaryDirectory() as run:
        run_ptq(["calibrate", "--run", run, "--preset", preset], folder)
        run_ptq(["export", "--run", run, "--preset", preset], folder)
        report = evaluate_run(run, folder)
    return cells_of(report, sample, preset)


if __name__ == "__main__":
    main()

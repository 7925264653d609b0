"""Accuracy and size of the sample models with each preset for TensorRT, on ONNX Runtime: no engine is built.

python -m benchmarks.tensorrt
"""

import tempfile

from benchmarks.presets import ROOT, SAMPLES
from benchmarks.timing import evaluate_run, run_ptq

PRESETS = ("int8", "fp8", "nvfp4", "int4_awq")
CONVOLUTIONS = "cifar10_cnn"
OF_PRODUCTS = ("nvfp4", "int4_awq")
"""These quantize products with constant matrices, and a network of convolutions has one."""
HEADER = ("sample", "preset", "top-1, float", "top-1", "SQNR", "file", "of float", "layers")


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


if __name__ == "__main__":
    main()

"""What OpenVINO computes on an emulated ARM processor from the CNN sample's files.

python -m benchmarks.openvino_arm             print the table; needs openvino, and Debian on x86-64
python -m benchmarks.openvino_arm --write     also write it to benchmarks/RESULTS.md

The files have an open batch, and are compiled for any batch, as programs may do, and for that of the samples.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.results_page import print_part
from benchmarks.speed import write_cnn
from benchmarks.timing import run_ptq
from tools.processors.__main__ import CACHE
from tools.processors.emulators import aarch64_python, install_aarch64

CPU, SAMPLES = "neoverse-n1", 16
TARGETS = ("openvino", "ort-cpu")
SCRIPT = """
import json, sys
import numpy as np
import openvino
folder, name = sys.argv[1:]
inputs = np.load(f"{folder}/inputs.npy")
core, found = openvino.Core(), {}
settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
wanted = next(iter(core.compile_model(f"{folder}/model.onnx", "CPU", settings)(inputs).values()))
for form in ("any batch", "this batch"):
    model = core.read_model(f"{folder}/{name}.onnx")
    if form == "this batch":
        model.reshape(list(inputs.shape))
    try:
        noise = next(iter(core.compile_model(model, "CPU", settings)(inputs).values())) - wanted
        found[form] = f"{10 * np.log10((wanted**2).sum() / (noise**2).sum()):.1f} dB"
    except RuntimeError as error:
        found[form] = str(error).strip().splitlines()[-1]
print(json.dumps(found))
"""


def main() -> None:
    """Parse the arguments, measure, and print or write the table."""
    parser = argparse.ArgumentParser(description="Compare OpenVINO on x86 and on emulated ARM.")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print_part("openvino_arm", report(Path(scratch)), write=arguments.write)


def report(folder: Path) -> Iterator[str]:
    """Measure the files, and yield the lines of the table."""
    yield (
        f"`python -m benchmarks.openvino_arm --write`, openvino {version('openvino')}, {SAMPLES} samples of "
        f"the CNN; ARM is {CPU}, emulated. SQNR against the float network on the same processor."
    )
    yield from ("", "| target | processor | compiled for any batch | for this batch |", "|---|---|---|---|")
    write_cnn(folder)
    np.save(folder / "inputs.npy", np.load(folder / "eval.npz")["image"][:SAMPLES])
    packages = CACHE / f"openvino-{version('openvino')}"
    if not packages.exists():
        install_aarch64(packages, ["openvino"])
    processors = {"x86-64": [sys.executable], "ARM": aarch64_python(CPU, CACHE, str(packages))}
    for target in TARGETS:
        options = ["--data", "calib.npz", "--target", target, "-o", f"{target}.onnx"]
        run_ptq(["quantize", "model.onnx", *options], folder)
        for title, python in processors.items():
            words = [*python, "-c", SCRIPT, str(folder), target]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            yield f"| {target} | {title} | {' | '.join(json.loads(done.stdout).values())} |"


if __name__ == "__main__":
    main()

"""Run a model on samples one at a time, and keep its outputs: with numpy and ONNX Runtime alone.

PYTHON run_file.py MODEL DATA SAMPLES OUTPUT
"""

import sys

import numpy as np
import onnxruntime


def main() -> None:
    """Run the model, and write ``.npz``."""
    model, data, samples, output = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(data) as arrays:
        whole = {item.name: arrays[item.name] for item in session.get_inputs()}
    count = min(int(samples), *map(len, whole.values()))
    rows = [
        session.run(None, {name: array[row : row + 1] for name, array in whole.items()})
        for row in range(count)
    ]
    np.savez(output, *map(np.stack, zip(*rows, strict=True)))


if __name__ == "__main__":
    main()

"""AIMET's AdaRound, weights of 4 bits and activations of 8: run by a Python that has aimet-onnx.

PYTHON by_aimet.py MODEL DATA OUTPUT --samples 512 --steps 2000

Weights are symmetric per channel, activations per tensor, as ptq's are. It writes a file with
QuantizeLinear and DequantizeLinear.
"""

import argparse

import numpy as np
import onnx
import torch
from aimet_onnx import QuantizationSimModel, apply_adaround, int4, int8

BATCH = 32


def main() -> None:
    """Parse the arguments, quantize, and write the file."""
    parser = argparse.ArgumentParser(description="Quantize with AIMET's AdaRound.")
    for name in ("model", "data", "output"):
        parser.add_argument(name)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument(
        "--steps", type=int, required=True, help="of AdaRound for each layer; 0 leaves it out"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    with np.load(arguments.data) as arrays:
        whole = {name: array[: arguments.samples] for name, array in arrays.items()}
    batches = [
        {name: array[start : start + BATCH] for name, array in whole.items()}
        for start in range(0, arguments.samples, BATCH)
    ]
    simulated = QuantizationSimModel(
        onnx.load(arguments.model),
        param_type=int4,
        activation_type=int8,
        quant_scheme="min_max",
        session_options_kwargs={"intra_op_num_threads": 1},
    )
    if arguments.steps:
        apply_adaround(simulated, batches, num_iterations=arguments.steps)
    simulated.compute_encodings(batches)
    onnx.save(simulated.to_onnx_qdq(prequantize_constants=True), arguments.output)


if __name__ == "__main__":
    main()

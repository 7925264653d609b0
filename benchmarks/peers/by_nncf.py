"""NNCF's weights of 4 bits in blocks, or its default of 8 bits: run by a Python that has nncf and openvino.

PYTHON by_nncf.py MODEL DATA OUTPUT --samples 16 --method awq
PYTHON by_nncf.py MODEL DATA OUTPUT --samples 16 --method gptq
PYTHON by_nncf.py MODEL DATA OUTPUT --samples 48 --method default

``awq`` is AWQ with scale estimation. All layers, the embedding and the last one, too, get 4 bits with zero
points, as ptq's do. It writes OpenVINO's model. ``default`` is ``nncf.quantize`` of an ONNX model, which it
writes as ONNX.
"""

import argparse

import nncf
import numpy as np
import openvino

BLOCK = 32
METHODS = {"awq": {"awq": True, "scale_estimation": True}, "gptq": {"gptq": True}}


def main() -> None:
    """Parse the arguments, quantize, and write the file."""
    parser = argparse.ArgumentParser(description="Compress weights with NNCF.")
    for name in ("model", "data", "output"):
        parser.add_argument(name)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--method", choices=(*METHODS, "default"), required=True)
    arguments = parser.parse_args()
    with np.load(arguments.data) as arrays:
        whole = {name: array[: arguments.samples] for name, array in arrays.items()}
    feeds = [
        {name: array[row : row + 1] for name, array in whole.items()}
        for row in range(min(arguments.samples, *map(len, whole.values())))
    ]
    if arguments.method == "default":
        import onnx

        model = onnx.load(arguments.model)
        onnx.save(nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds)), arguments.output)
        return
    compressed = nncf.compress_weights(
        openvino.convert_model(arguments.model),
        mode=nncf.CompressWeightsMode.INT4_ASYM,
        group_size=BLOCK,
        ratio=1.0,
        prefer="size",
        dataset=nncf.Dataset(feeds),
        subset_size=len(feeds),
        **METHODS[arguments.method],
    )
    openvino.save_model(compressed, arguments.output, compress_to_fp16=False)


if __name__ == "__main__":
    main()

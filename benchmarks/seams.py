"""What converting a tensor costs beside what an int8 kernel saves: ``python -m benchmarks.seams``.

The constants of ``ptq_cli/plan/cost_benefit.py`` come from it. Each time is that of the fastest of many runs
on one thread.
"""

import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.tensors import Array

ELEMENTS = 1_000_000
PAIRS = 50
# Input and output channels, height and width, kernel.
CONVOLUTIONS = ((16, 16, 64, 1), (32, 32, 32, 3), (64, 64, 28, 3), (64, 64, 28, 1))
SCALE: dict[str, Array] = {"scale": np.asarray(0.02, np.float32), "zero_point": np.asarray(128, np.uint8)}


def fastest(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], x: Array, y: int, runs: int = 60
) -> float:
    """Return the seconds of the fastest run of a graph from ``x`` to ``y``."""
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    outputs = [helper.make_tensor_value_info("y", y, None)]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "seam", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, {"x": x})
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def quantize(source: str, result: str) -> onnx.NodeProto:
    """Return a QuantizeLinear."""
    return helper.make_node("QuantizeLinear", [source, "scale", "zero_point"], [result])


def dequantize(source: str, result: str) -> onnx.NodeProto:
    """Return a DequantizeLinear."""
    return helper.make_node("DequantizeLinear", [source, "scale", "zero_point"], [result])


def conversions() -> tuple[float, float]:
    """Return the nanoseconds for an element, and for a node that converts next to nothing."""
    random = np.random.default_rng(0)
    x = random.standard_normal(ELEMENTS).astype(np.float32)
    element = fastest([quantize("x", "y")], SCALE, x, TensorProto.UINT8) / ELEMENTS
    names = ["x", *(f"h{k}" for k in range(PAIRS - 1)), "y"]
    chain = []
    for k in range(PAIRS):  # A Sin between pairs, or they would be removed.
        chain += [
            helper.make_node("Sin", [names[k]], [f"s{k}"]),
            quantize(f"s{k}", f"q{k}"),
            dequantize(f"q{k}", names[k + 1]),
        ]
    plain = [helper.make_node("Sin", [names[k]], [names[k + 1]]) for k in range(PAIRS)]
    small = x[:16]
    node = fastest(chain, SCALE, small, TensorProto.FLOAT, 600) - fastest(
        plain, {}, small, TensorProto.FLOAT, 600
    )
    return 1e9 * element, 1e9 * node / (2 * PAIRS)


def saved_by_convolutions() -> float:
    """Return the median of the nanoseconds that an int8 convolution saves for a multiply-accumulate."""
    random, found = np.random.default_rng(0), []
    for channels, filters, side, kernel in CONVOLUTIONS:
        x = random.standard_normal((1, channels, side, side)).astype(np.float32)
        w = random.standard_normal((filters, channels, kernel, kernel)).astype(np.float32)
        pads = [kernel // 2] * 4
        exact = fastest(
            [helper.make_node("Conv", ["x", "w"], ["y"], pads=pads)], {"w": w}, x, TensorProto.FLOAT
        )
        weights: dict[str, Array] = {
            "w": (w * 30).astype(np.int8),
            "w_scale": np.full(filters, 0.03, np.float32),
            "w_zero": np.zeros(filters, np.int8),
        }
        nodes = [
            dequantize("x", "a"),
            helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["b"], axis=0),
            helper.make_node("Conv", ["a", "b"], ["c"], pads=pads),
            quantize("c", "y"),
        ]
        integers = np.clip(x * 50 + 128, 0, 255).astype(np.uint8)
        faster = fastest(nodes, {**weights, **SCALE}, integers, TensorProto.UINT8)
        found.append(1e9 * (exact - faster) / (filters * channels * kernel**2 * side**2))
    return float(np.median(found))


def main() -> None:
    """Print what was measured."""
    element, node = conversions()
    saved = saved_by_convolutions()
    print(f"int8 convolutions save {saved:.4f} ns for a multiply-accumulate (median of {len(CONVOLUTIONS)})")
    print(f"converting an element takes {element:.3f} ns, as {element / saved:.0f} multiply-accumulates save")
    print(f"a node that converts takes {node:.0f} ns, as {node / saved:,.0f} multiply-accumulates save")


if __name__ == "__main__":
    main()

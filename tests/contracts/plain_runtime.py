"""ONNX Runtime without optimizations: it computes what a graph says, and its bits are compared."""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

EXTREMES = [0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-39, -1e-39, 2.0**24, 2.0**31]
EXTREMES += [-(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 1e10, -1e10]


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def session_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Iterable[tuple[str, int]],
    constants: Sequence[TensorProto] = (),
    opset: int = 21,
    outputs: Iterable[tuple[str, int]] = (("y", TensorProto.FLOAT),),
) -> onnxruntime.InferenceSession:
    """Open nodes with inputs and outputs of these types and any shape."""
    ends = [
        [helper.make_tensor_value_info(name, kind, None) for name, kind in side] for side in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "plain", *ends, list(constants))
    opsets = [helper.make_opsetid("", opset)]
    return plain_session(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def assert_same_bits(left: np.ndarray, right: np.ndarray) -> None:
    assert left.shape == right.shape
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))

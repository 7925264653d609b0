"""What ONNX Runtime's optimizer must leave alone, and that it computes the same then."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.runtime.block_levels import BIAS_QUANTIZATION, LeftOut, left_out
from ptq_cli.runtime.session import Session


def model(dtype: int, scale_dtype: type, weight_dtype: int | None = None) -> bytes:
    """Relu, a pair, and a Conv with a bias, whose weight has a DequantizeLinear."""
    zero = helper.make_tensor("z", dtype, [], [0])
    scale = numpy_helper.from_array(np.asarray(0.01, scale_dtype), "s")
    random = np.random.default_rng(0)
    weight = helper.make_tensor("w", weight_dtype or dtype, [4, 3, 1, 1], random.integers(-7, 8, 12).tolist())
    bias = numpy_helper.from_array(np.asarray([0.5, -0.5, 1, 2], scale_dtype), "b")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("Conv", ["d", "v", "b"], ["y"]),
    ]
    kind = TensorProto.FLOAT16 if scale_dtype is np.float16 else TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, [1, n, 2, 2]) for name, n in (("x", 3), ("y", 4)))
    graph = helper.make_graph(nodes, "g", [x], [y], [zero, scale, weight, bias])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "scale", "wanted"),
    [
        (TensorProto.INT8, np.float32, LeftOut()),
        (TensorProto.INT8, np.float16, LeftOut((BIAS_QUANTIZATION,))),
        (TensorProto.FLOAT8E4M3FN, np.float32, LeftOut((BIAS_QUANTIZATION,), everything=True)),
    ],
)
def test_it_computes_what_the_file_says(dtype: int, scale: type, wanted: LeftOut) -> None:
    content = model(dtype, scale)
    assert left_out(content) == wanted
    x = np.random.default_rng(1).standard_normal((1, 3, 2, 2)).astype(scale)
    found, written = (
        Session(content, threads=1, optimize=optimize).run({"x": x})[0] for optimize in (True, False)
    )
    assert np.abs(found - written).max() < 2e-3 and np.abs(written).max() > 1


def test_a_model_without_pairs_is_not_read() -> None:
    assert left_out(b"not a model at all") == LeftOut()

"""What a layer with ranges of its own computes at each run: the file as written, against numpy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.stored_constants import dynamic_parts
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all
from tests.each_case import each_case

Floats = npt.NDArray[np.float32]
FUSED = 2e-6  # Of the largest result: ONNX Runtime's fused operators multiply the scales in another order

# The shape of each layer's weight.
LAYERS = {"matmul": (24, 10), "batched": (2, 24, 10), "gemm": (24, 10), "turned": (10, 24)}


def make_model(
    nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], x: list[str | int], opset: int
) -> ir.Model:
    rng = np.random.default_rng(0)
    value = onnx.helper.make_tensor_value_info
    held = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    ends = [value("x", onnx.TensorProto.FLOAT, x), value("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def layer_model(layer: str, opset: int) -> ir.Model:
    if layer in ("matmul", "batched"):
        node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "layer")
        return make_model([node], {"w": LAYERS[layer]}, [2, 3, 24], opset)
    node = onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], "layer", transB=int(layer == "turned"))
    return make_model([node], {"w": LAYERS[layer], "b": (10,)}, [6, 24], opset)


def activations() -> Floats:
    """Values with a row of zeros, a row of one sign, and one with an outlier."""
    x = np.random.default_rng(1).standard_normal((2, 3, 24)).astype(np.float32)
    x[0, 0], x[0, 1], x[1, 2, 5] = 0.0, np.abs(x[0, 1]) + 3, 500.0
    return x


def of_rows(x: Floats, integers: npt.NDArray[np.int64], scale: Floats) -> Floats:
    steps = np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(1e-30)) * np.float32(1 / 127)
    q = np.clip(np.rint(x / steps) + 128, 0, 255).astype(np.int64) - 128
    return np.matmul(q, integers).astype(np.float32) * scale * steps


def of_tensor(x: Floats, integers: npt.NDArray[np.int64], scale: Floats) -> Floats:
    # ONNX DynamicQuantizeLinear: the range has 0, and the zero point is rounded.
    low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    step = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / step), 0, 255).astype(np.int64)
    q = np.clip(np.rint(x / step) + zero, 0, 255).astype(np.int64)
    return np.matmul(q - zero, integers).astype(np.float32) * (step * scale)


def run(model: onnx.ModelProto, x: Floats, *, optimize: bool) -> Floats:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Any = session.run(None, {"x": x})[0]
    return found


@each_case("opset", [17, 21])
@each_case("kind", ["row", "tensor"])
@each_case("layer", LAYERS)
def test_a_layer_equals_its_arithmetic(layer: str, kind: str, opset: int) -> None:
    model = layer_model(layer, opset)
    plan = make_plan(model, load_target("ort-cpu"), LayerChoices(dynamic={"layer": kind}))
    assert not plan.activations and [site.dynamic for site in plan.weights] == [kind]
    assert [item.dynamic for item in plan.layers if item.name == "layer"] == [True]
    parameters = decide_all(model, plan, lambda _: pytest.fail("nothing has a range"))
    (item,), (found,) = parameters.decided.values(), parameters.weights.values()
    stored = item.stored
    bias = model.graph.initializers["b"].const_value.numpy() if "b" in model.graph.initializers else None
    quantize_in_place(model, plan, parameters)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    x = activations() if bias is None else activations().reshape(6, 24)
    integers = stored.integers.astype(np.int64)
    expected = (of_rows if kind == "row" else of_tensor)(
        x, integers.T if layer == "turned" else integers, found.scale
    )
    expected = expected if bias is None else expected + bias
    np.testing.assert_array_equal(run(proto, x, optimize=False), expected)
    got = run(proto, x, optimize=True)
    assert np.abs(got - expected).max() <= FUSED * np.abs(expected).max()
    if kind == "row" and bias is None:
        assert not got[0, 0].any()  # a row of zeros gives zeros
        # and a sample beside it does not change a result
        np.testing.assert_array_equal(run(proto, x[:1].repeat(2, 0), optimize=True)[0], got[0])


def test_layers_that_read_one_tensor_make_its_integers_once() -> None:
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "q"], ["a"], "query"),
        make("MatMul", ["x", "k"], ["b"], "key"),
        make("Add", ["a", "b"], ["y"], "sum"),
    ]
    model = make_model(nodes, {"q": (8, 8), "k": (8, 8)}, ["n", 8], 17)
    plan = make_plan(model, load_target("ort-cpu"), LayerChoices(dynamic={"query": "row", "key": "row"}))
    quantize_in_place(model, plan, decide_all(model, plan, lambda _: pytest.fail("nothing has a range")))
    made = [node.op_type for node in model.graph]
    assert (made.count("QuantizeLinear"), made.count("MatMulInteger")) == (1, 2)


def test_a_product_of_another_tool_is_no_part_of_a_layer() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (uint8[n, 8] x, int8[8, 8] w) => (int32[n, 8] y) {
        ["block/dynamic_int8/MatMulInteger"] y = MatMulInteger(x, w) }"""
    assert dynamic_parts(ir.from_proto(onnx.parser.parse_model(text))) == {}

"""The sums of integer kernels are those of ONNX Runtime, where these are exact.

What is cut out of a file whose kernels are not simply parts of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ptq_cli.devices.integer_kernels import IntegerKernels, ReferenceSession, expect

OPSETS = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def integers(random: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.int8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize(
    "attributes",
    [
        {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 3]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "dilations": [1, 1]},
        {"auto_pad": "VALID"},
    ],
    ids=["groups", "same-upper", "same-lower", "valid"],
)
def test_convolutions_are_those_of_onnxruntime(
    attributes: Mapping[str, Any], random: np.random.Generator
) -> None:
    inputs = {
        "x": integers(random, (2, 6, 11, 8), np.uint8),
        "sx": np.float32(0.02),
        "zx": np.uint8(117),
        "w": integers(random, (4, 6 // attributes.get("group", 1), 3, 2)),
        "sw": random.uniform(0.001, 0.01, 4).astype(np.float32),
        "zw": np.zeros(4, np.int8),
        "sy": np.float32(0.3),
        "zy": np.uint8(129),
        "b": random.integers(-9999, 9999, 4, np.int32),
    }
    compare(onnx.helper.make_node("QLinearConv", list(inputs), ["y"], "c", **attributes), inputs)


def test_convolutions_of_one_and_three_dimensions_are_those_of_onnxruntime(
    random: np.random.Generator,
) -> None:
    for size in ((9,), (4, 5, 6)):
        inputs = {
            "x": integers(random, (1, 3, *size), np.uint8),
            "w": integers(random, (2, 3, *[2] * len(size)), np.uint8),
            "zx": np.uint8(3),
            "zw": np.uint8(128),
        }
        compare(onnx.helper.make_node("ConvInteger", list(inputs), ["y"]), inputs)


@pytest.mark.parametrize(("turned", "quantizes"), [(0, True), (1, True), (1, False)])
def test_gemms_are_those_of_onnxruntime(turned: int, quantizes: bool, random: np.random.Generator) -> None:
    inputs = {
        "a": integers(random, (3, 40), np.uint8),
        "sa": np.float32(0.02),
        "za": np.uint8(117),
        "b": integers(random, (5, 40) if turned else (40, 5)),
        "sb": random.uniform(0.001, 0.01, 5).astype(np.float32),
        "zb": np.zeros(5, np.int8),
        "c": random.integers(-9999, 9999, 5, np.int32),
    }
    if quantizes:
        inputs |= {"sy": np.float32(0.1), "zy": np.uint8(129)}
    node = onnx.helper.make_node(
        "QGemm", list(inputs), ["y"], domain="com.microsoft", transB=turned, alpha=1.0
    )
    compare(node, inputs)


@pytest.mark.parametrize("quantizes", [True, False])
def test_products_of_matrices_are_those_of_onnxruntime(quantizes: bool, random: np.random.Generator) -> None:
    a, b = integers(random, (2, 3, 40), np.uint8), integers(random, (2, 40, 5), np.uint8)
    sa, sb, za, zb = np.float32(0.02), np.float32(0.03), np.uint8(117), np.uint8(9)
    if quantizes:
        values = {"a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": zb}
        values |= {"sy": np.float32(0.5), "zy": np.uint8(129)}
        compare(onnx.helper.make_node("QLinearMatMul", list(values), ["y"]), values)
    else:
        bias = random.normal(size=5).astype(np.float32)
        values = {"a": a, "b": b, "sa": sa, "sb": sb, "za": za, "zb": zb, "bias": bias}
        domain = "com.microsoft"
        compare(onnx.helper.make_node("MatMulIntegerToFloat", list(values), ["y"], domain=domain), values)


def compare(node: onnx.NodeProto, inputs: Mapping[str, Any]) -> None:
    """Compare a kernel with ONNX Runtime's, which gets zero points and weights as constants."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    x = node.input[0]
    given = onnx.helper.make_tensor_value_info(
        x, onnx.helper.np_dtype_to_tensor_dtype(arrays[x].dtype), arrays[x].shape
    )
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name != x]
    graph = onnx.helper.make_graph([node], "one", [given], [onnx.ValueInfoProto(name="y")], constants)
    model = onnx.helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    here = ReferenceSession(model.SerializeToString()).run({x: arrays[x]})["y"]
    expected = expect(node, list(arrays.values()))
    assert expected.is_met_by(here)
    assert len(np.unique(here)) > 5, "most of it saturates, so nothing was compared"


MOVED = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 9, 9, 4] x) => (float[n, 9, 9, 4] y)
<float sx = {0.01}, uint8 zx = {120}, float sw = {0.01}, int8 zw = {0}, float sc = {0.09}, uint8 zc = {131}> {
    xq = QuantizeLinear(x, sx, zx)
    xd = DequantizeLinear(xq, sx, zx)
    t = Transpose <perm = [0, 3, 1, 2]> (xd)
    tq = QuantizeLinear(t, sx, zx)
    td = DequantizeLinear(tq, sx, zx)
    wq = QuantizeLinear(w, sw, zw)
    wd = DequantizeLinear(wq, sw, zw)
    c = Conv <kernel_shape = [1, 1]> (td, wd)
    cq = QuantizeLinear(c, sc, zc)
    cd = DequantizeLinear(cq, sc, zc)
    r = Add(cd, td)
    rq = QuantizeLinear(r, sc, zc)
    rd = DequantizeLinear(rq, sc, zc)
    y = Transpose <perm = [0, 2, 3, 1]> (rd)
}"""


def operators(content: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(content).graph.node]


def test_a_kernel_that_reads_what_is_not_in_the_file_is_the_fused_operator(tmp_path: Path) -> None:
    model = parser.parse_model(MOVED)
    weight = np.linspace(-0.6, 0.6, 16, dtype=np.float32).reshape(4, 4, 1, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    x = np.random.default_rng(1).normal(size=(2, 9, 9, 4)).astype(np.float32)
    conv, add = IntegerKernels(ir.from_proto(model), tmp_path).cases([{"x": x}])
    assert (conv.op, operators(conv.model)[-2:]) == ("QLinearConv", ["Conv", "QuantizeLinear"])
    assert (add.op, operators(add.model)) == ("QLinearAdd", ["QLinearAdd"])
    assert [len(case.runs) for case in (conv, add)] == [2, 2]
    for inputs, expected in add.runs:
        assert len(inputs) == 2 and expected["rq"].value.shape == (2, 4, 9, 9)
    extreme = conv.runs[1][0]["tq"]
    assert set(np.unique(extreme)) == {0, 255}


def test_a_file_in_float_has_none(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Neg(x) }"""
    model = ir.from_proto(parser.parse_model(text))
    assert IntegerKernels(model, tmp_path).cases([{"x": np.ones(2, np.float32)}]) == []

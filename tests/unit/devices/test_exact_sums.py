"""The sums of integer kernels are those of ONNX Runtime, where these are exact."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from ptq_cli.devices.exact_sums import expect
from ptq_cli.devices.integer_kernels import ReferenceSession

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

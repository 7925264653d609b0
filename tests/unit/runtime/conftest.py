"""Tiny ONNX models, written by hand."""

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

BuildModel = Callable[..., onnx.ModelProto]


@pytest.fixture
def build_model() -> BuildModel:
    """Build a model from nodes ``(op, inputs, outputs)`` and values ``name=(dtype, shape)``."""

    def build(nodes, inputs, outputs, initializers=()):
        def value(name, kind):
            return helper.make_tensor_value_info(name, *kind)

        graph = helper.make_graph(
            [helper.make_node(op, taken, given, name=f"{op}_{given[0]}") for op, taken, given in nodes],
            "g",
            [value(*item) for item in inputs.items()],
            [value(*item) for item in outputs.items()],
            list(initializers),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    return build


@pytest.fixture
def arithmetic(build_model) -> onnx.ModelProto:
    """x, y → sum = x + y, difference = x - y, and the product of both as the output."""
    floats = (TensorProto.FLOAT, ["n", 3])
    return build_model(
        [
            ("Add", ["x", "y"], ["sum"]),
            ("Sub", ["x", "y"], ["difference"]),
            ("Mul", ["sum", "difference"], ["product"]),
        ],
        {"x": floats, "y": floats},
        {"product": floats},
    )

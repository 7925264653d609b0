"""Shapes are inferred as onnx_ir's pass infers them, in nested graphs too."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.shapes import all_known, infer_shapes

CHAIN = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 3] x) => (float y) { a = Exp(x)  b = Shape(a)  c = Reshape(a, b)  y = MatMul(c, w) }"""
BRANCHES = """<ir_version: 10, opset_import: ["": 20]>
g (bool[1] c, float[n, 3] x) => (float y) {
    y = If(c) <
        then_branch = t () => (float a) { a = MatMul(x, w) },
        else_branch = e () => (float a) { b = Exp(x)  a = MatMul(b, w) }
    >
}"""
SEQUENCE = """<ir_version: 10, opset_import: ["": 20]>
g (float[4, 3] x) => (float[4, 3] y) { s = SequenceConstruct(x)  i = Constant<value_int: int = 0>()
    y = SequenceAt(s, i) }"""


def read(text: str, columns: int = 2) -> ir.Model:
    model = ir.from_onnx_text(text)
    model.graph.register_initializer(
        ir.val("w", const_value=ir.tensor(np.zeros((3, columns), np.float32), name="w"))
    )
    for node in every_node(model.graph):
        for value in node.outputs:
            value.shape, value.type = None, None
    return model


def found(model: ir.Model) -> list[tuple[object, ...]]:
    values = [value for node in every_node(model.graph) for value in node.outputs]
    return [(value.name, value.dtype, value.shape) for value in values]


@pytest.mark.parametrize("columns", [2, 2000])
@pytest.mark.parametrize("text", [CHAIN, BRANCHES, SEQUENCE])
def test_shapes_are_those_of_the_pass(text: str, columns: int) -> None:
    ours, theirs = read(text, columns), read(text, columns)
    infer_shapes(ours, strict=False)
    ShapeInferencePass(check_type=False, strict_mode=False)(theirs)
    assert found(ours) == found(theirs)
    assert found(ours)[-1][2] == ([4, 3] if text is SEQUENCE else ["n", columns])
    assert [value.name for value in ours.graph.inputs] == [value.name for value in theirs.graph.inputs]
    assert ours.graph.initializers["w"].const_value is not None


def test_a_model_that_cannot_be_inferred_stays_as_it_is() -> None:
    text = CHAIN.replace("float[n, 3] x", "float[n, 4] x")
    ours = read(text)
    infer_shapes(ours)
    assert all(shape is None for _, _, shape in found(ours))
    assert ours.graph.initializers["w"].const_value is not None


def test_all_is_known_where_every_size_is_a_number() -> None:
    open_size, fixed = read(CHAIN), read(CHAIN.replace("n, 3", "5, 3"))
    for model in (open_size, fixed):
        assert not all_known(model.graph)
        infer_shapes(model)
    assert all_known(fixed.graph)
    assert not all_known(open_size.graph)

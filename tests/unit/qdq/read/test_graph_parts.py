"""Parts of a graph are models of their own, and the graph stays as it is."""

import numpy as np
import onnx_ir as ir

from ptq_cli.qdq.read.graph_parts import part_of
from tests.unit.plan.graphs import build, run


def test_a_part_computes_what_its_nodes_do_and_leaves_the_model_alone() -> None:
    model = build(
        "(float[n, 4] x) => (float[n, 3] y) <float[4, 3] w, float[3] b> {"
        " m = MatMul (x, w) a = Add (m, b) y = Relu (a) }"
    )
    before = ir.to_proto(model)
    add, relu = model.graph.node("a"), model.graph.node("y")
    part = part_of(model, [add, relu], add.inputs[:1], relu.outputs)
    assert list(part.graph.initializers) == ["b"]
    product = np.float32([[-9.0, 0.0, 9.0]])
    bias = model.graph.initializers["b"].const_value.numpy()
    assert np.array_equal(run(part, {"m": product})[0], np.maximum(product + bias, 0))
    part.graph.inputs[0].shape = None
    assert ir.to_proto(model) == before
    assert [use.node.name for use in model.graph.node("m").outputs[0].uses()] == ["a"]

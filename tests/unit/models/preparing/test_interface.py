"""Names of nodes and values, where they clash."""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.preparing.interface import name_graph
from ptq_cli.models.preparing.prepare_graph import prepare
from tests.unit.models.contents import names, noise
from tests.unit.plan.graphs import build, run


def rename_nodes(model: ir.Model, *wanted: str) -> None:
    """As the TorchScript exporter names them: for the path of the module."""
    for node, name in zip(model.graph, wanted, strict=False):
        node.name = name


def test_an_initializer_is_not_renamed_to_another_ones_name():
    # Both want to be head.weight: the folded transposition for its module, the other by right.
    model = build(
        """(float[N,4] x) => (float[] y) <float[4,4] folded, float[4,4] head_weight> {
            h = MatMul(x, folded)
            y = MatMul(h, head_weight) }"""
    )
    rename_nodes(model, "/head/MatMul", "/other/MatMul")
    model.graph.initializers["head_weight"].name = "head.weight"
    before = run(model, {"x": noise(2, 4)})
    name_graph(model)
    assert set(model.graph.initializers) == {"head.weight", "head.weight_2"}
    np.testing.assert_array_equal(run(model, {"x": noise(2, 4)})[0], before[0])


def test_names_inside_a_nested_graph_do_not_clash():
    model = build(
        """(float[N,4] x, bool c) => (float[N,4] y) <float[4,4] w> {
            h = Relu(x)
            y = If(c) <
                then_branch = t () => (float[N,4] p) { fc_Relu = Neg(h)
                    p = MatMul(fc_Relu, w) },
                else_branch = e () => (float[N,4] q) { q = Neg(h) }> }"""
    )
    rename_nodes(model, "/fc/Relu")
    inner = model.graph.node(1).attributes["then_branch"].as_graph()
    inner.node(0).outputs[0].name = "fc/Relu"
    inputs = {"x": noise(2, 4), "c": np.array(True)}
    before = run(model, inputs)
    after = prepare(model, "m.onnx")
    assert names(after)[0] == "fc/Relu"
    np.testing.assert_array_equal(run(after, inputs)[0], before[0])


def test_a_value_that_is_named_as_an_output_is_renamed():
    model = build("(float[N,4] x) => (float[] fc) <float[4,4] w> { h = MatMul(x, w)\n fc = Relu(h) }")
    rename_nodes(model, "/fc/MatMul")
    after = prepare(model, "m.onnx")
    assert [value.name for value in after.graph.outputs] == ["fc"]
    assert names(after)[0] == "fc"
    assert after.graph.node(0).outputs[0].name == "fc_2"


def test_a_model_in_many_names_stays_the_same(tmp_path):
    model = build("(float[N,4] x) => (float[] y) <float[4,4] w> { h = MatMul(x, w)\n y = Relu(h) }")
    once = ir.to_proto(prepare(model, "m.onnx")).SerializeToString()
    twice = ir.to_proto(prepare(prepare(model, "m.onnx"), "m.onnx")).SerializeToString()
    assert once == twice


def test_what_only_a_removed_if_read_is_removed_with_it() -> None:
    model = build(
        """(float[N,4] x, bool c) => (float[N,4] y) {
        a = Neg(x)
        b = Abs(x)
        unread = If(c) <then_branch = t () => (float[N,4] p) { p = Add(a, b) },
                        else_branch = e () => (float[N,4] q) { q = Tanh(b) }>
        y = Relu(b) }"""
    )
    left = list(prepare(model, "m.onnx").graph)
    assert [node.op_type for node in left] == ["Abs", "Relu"]
    assert len(left[0].outputs[0].uses()) == 1


def test_outputs_of_a_branch_that_are_equal_are_two_values():
    model = build(
        """(float[N,4] x, bool c) => (float[N,4] y) {
            a, b = If(c) <
                then_branch = t () => (float[N,4] p, float[N,4] q) { p = Neg(x) q = Neg(x) },
                else_branch = e () => (float[N,4] r, float[N,4] s) { r = Abs(x) s = Exp(x) }>
            y = Add(a, b) }"""
    )
    inputs = {"x": noise(3, 4), "c": np.array(True)}
    np.testing.assert_array_equal(run(prepare(model, "m.onnx"), inputs)[0], run(model, inputs)[0])

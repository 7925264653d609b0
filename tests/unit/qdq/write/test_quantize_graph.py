"""How single graphs are quantized; what every small graph keeps is in ``tests/contracts/small_graphs``."""

import onnx_ir as ir

from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

LEAST_DB = 20.0


def export(name: str) -> ir.Model:
    return quantized(build(CASES[name].graph))


def test_quantizing_twice_gives_the_same_bytes():
    model = build(CASES["residual_block"].graph)
    assert serialized(quantized(model)) == serialized(quantized(model))


def test_layers_that_share_a_weight_share_what_is_stored():
    result = export("shared_weight")
    assert [key for key in result.graph.initializers if key.startswith("w")] == [
        "w.quantized",
        "w.scale",
        "w.zero_point",
    ]
    # The inputs' scales differ, and with them the biases'.
    assert sum(key.startswith("b.quantized") for key in result.graph.initializers) == 2


def test_a_shared_weight_on_two_axes_is_stored_for_each():
    result = export("shared_weight_on_two_axes")
    assert sum(key.startswith("w.quantized") for key in result.graph.initializers) == 2


def test_tensors_that_share_parameters_share_the_constants():
    result = export("reshape_transpose")
    pairs = [node for node in result.graph if node.op_type == "QuantizeLinear"]
    assert {(node.inputs[1].name, node.inputs[2].name) for node in pairs} == {
        ("x.scale", "x.zero_point"),
        ("g.scale", "g.zero_point"),
    }


def test_a_float_reader_reads_the_float_value_where_there_is_one():
    result = export("residual_after_norm")
    readers = {node.op_type for node, _ in next(n for n in result.graph if n.name == "l").outputs[0].uses()}
    assert readers == {"QuantizeLinear", "Add"}


def test_a_float_reader_of_an_integer_result_reads_behind_the_pair():
    result = export("conv_hardswish")
    reader = next(node for node in result.graph if node.op_type == "HardSwish")
    assert reader.inputs[0].producer().op_type == "DequantizeLinear"


def test_names_that_are_taken_are_left_alone():
    text = """(float[N,3,8,8] x) => (float[] y)
        <float[4,3,3,3] w, float[4,1,1] y_scale, float[4,1,1] w_scale> {
        c = Conv(x, w)
        d = Mul(c, y_scale)
        y = Mul(d, w_scale) }"""
    model = build(text)
    for taken, wanted in (("y_scale", "c.scale"), ("w_scale", "w.scale")):
        model.graph.initializers[taken].name = wanted
    result = quantized(model)
    inputs = sample(model, seed=9)
    assert sqnr_db(run(model, inputs)[0], run(result, inputs)[0]) > LEAST_DB
    assert {"c.scale", "c.scale_2", "w.scale", "w.scale_2"} <= set(result.graph.initializers)


def test_a_value_that_is_named_as_a_float_output_would_be_is_left_alone():
    text = """(float[N,3,8,8] x) => (float[] c, float[] y) <float[3,3,1,1] w> { t = Tanh(x)
        c = Conv(t, w)
        y = Conv(c, w) }"""
    model = build(text)
    model.graph.node(0).outputs[0].name = "c.float"
    result = quantized(model)
    inputs = sample(model, seed=9)
    assert [value.name for value in result.graph.outputs] == ["c", "y"]
    assert sqnr_db(run(model, inputs)[0], run(result, inputs)[0]) > LEAST_DB

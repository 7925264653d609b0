"""How single graphs are quantized; what every small graph keeps is in ``tests/contracts/small_graphs``."""

import onnx
import onnx_ir as ir

from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.write.pair_nodes import forget_pair_types
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

LEAST_DB = 20.0


def export(name: str) -> ir.Model:
    return quantized(build(CASES[name].graph))


def test_quantizing_twice_gives_the_same_bytes():
    model = build(CASES["residual_block"].graph)
    assert serialized(quantized(model)) == serialized(quantized(model))


def test_a_shared_weight_on_two_axes_is_stored_for_each():
    result = export("shared_weight_on_two_axes")
    assert sum(key.startswith("w.quantized") for key in result.graph.initializers) == 2


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


# What a file says of the tensors of its pairs: nothing, apart from its outputs.


CHAIN = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {
    c = Conv(x, w) r = Relu(c) y = Conv(r, v) }"""


def types(model: ir.Model) -> dict[str, tuple[object, str]]:
    return {
        value.name or "": (value.dtype, str(value.shape)) for node in model.graph for value in node.outputs
    }


def test_what_is_left_out_is_inferred_again():
    model = quantized(build(CHAIN))
    before = types(model)
    smaller = model.clone()
    forget_pair_types(smaller)
    left = {info.name for info in ir.to_proto(smaller).graph.value_info}
    assert left == {"c", "r", "y.float"}
    onnx.checker.check_model(ir.to_proto(smaller), full_check=True)
    assert types(with_types(smaller)) == before

"""Models of an old opset: what was an attribute is an input, and every number is the same."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.opset import inline_functions, opset_of, raise_opset
from ptq_cli.models.preparing.prepare_graph import prepare_model
from ptq_cli.models.shapes import LARGE
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.unit.models.contents import noise
from tests.unit.models.older_operators import OLDER
from tests.unit.plan.graphs import run, sample

GIVEN = {
    "upsample_dynamic": {"s": np.array([1, 1, 2, 2], np.float32)},
    "softmax_of_unknown_rank": {"s": np.array([2, 3, 4])},
}


def parsed(text: str, opset: int) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> g {text}'))


def older(text: str, opset: int, *, as_inputs: bool) -> onnx.ModelProto:
    """An old model; its constants are initializers that are inputs too, as IR version 3 wants, or nodes."""
    proto = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["" : {opset}]> g {text}')
    if as_inputs:
        proto.ir_version = 3
        for node in [item for item in proto.graph.node if item.op_type == "Constant"]:
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            proto.graph.initializer.append(tensor)
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            proto.graph.input.append(info)
            proto.graph.node.remove(node)
    onnx.checker.check_model(proto)
    return proto


def check_old_operator(name: str, opset: int, *, as_inputs: bool) -> None:
    """What ONNX Runtime computes is the same before and after."""
    proto = older(OLDER[name][1], opset, as_inputs=as_inputs)
    known = {tensor.name for tensor in proto.graph.initializer}
    inputs = {
        key: np.asarray(array)
        for key, array in sample(ir.from_proto(proto), seed=4, batch=3).items()
        if key not in known
    } | GIVEN.get(name, {})
    expected = Session(proto.SerializeToString()).run(inputs)
    prepared = prepare_model(ir.from_proto(proto), "m.onnx")
    assert (prepared.opset_before, prepared.opset) == (opset, 13)
    left = {value.name for value in prepared.model.graph.inputs}
    found = run(prepared.model, {key: array for key, array in inputs.items() if key in left})
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@each_case("name", OLDER)
def test_an_old_operator_computes_the_same_from_the_first_opset_that_has_it(name: str):
    check_old_operator(name, OLDER[name][0][0], as_inputs=True)


@pytest.mark.nightly
@each_case("name", OLDER)
def test_an_old_operator_computes_the_same_from_every_opset(name: str):
    for opset in OLDER[name][0]:
        check_old_operator(name, opset, as_inputs=False)


def test_a_scan_over_a_batch_of_sequences_is_refused():
    text = """(float[2,5,3] x, float[2,3] h) => (float[2,3] g, float[2,5,3] y) {
        g, y = Scan<num_scan_inputs=1, body = b (float[3] a, float[3] v) => (float[3] p, float[3] q) {
            p = Add(a, v)
            q = Tanh(p) }>("", h, x) }"""
    with pytest.raises(InvalidOnnxError, match=r"has a Scan \(''\) of opset 8, which runs over a batch"):
        prepare_model(parsed(text, 8), "m.onnx")


def test_a_large_weight_does_not_pass_through_the_converter():
    model = parsed(
        "(float[N,64] x, float[64,64] w) => (float[N,64] y) { h = MatMul(x, w)\n y = Softmax(h) }", 11
    )
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(noise(64, 64))
    model.graph.register_initializer(weight)
    assert weight.const_value.size >= LARGE
    tensor = weight.const_value
    converted = raise_opset(model, 13, "m.onnx")
    assert converted.graph.initializers["w"].const_value is tensor
    assert [value.name for value in converted.graph.inputs] == ["x"]


def test_nodes_keep_the_module_that_they_came_from():
    model = parsed("(float[N,4] x) => (float[N,4] y) { h = Relu(x)\n y = Softmax(h) }", 11)
    model.graph.node(0).name = "act"
    model.graph.node(0).metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'layer.act', 'relu']"
    node = raise_opset(model, 13, "m.onnx").graph.node(0)
    assert node.name == "act"
    assert node.metadata_props["pkg.torch.onnx.name_scopes"] == "['', 'layer.act', 'relu']"


def test_a_newer_model_is_not_touched():
    model = parsed("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }", 17)
    assert raise_opset(model, 13, "m.onnx") is model
    assert opset_of(model) == 17


def test_an_operator_that_cannot_be_converted_is_an_error():
    model = parsed("(float[N,4] x) => (float[N,4] y) { y = Nonesuch(x) }", 11)
    with pytest.raises(InvalidOnnxError) as caught:
        raise_opset(model, 13, "m.onnx")
    assert caught.value.message.startswith("'m.onnx' cannot be converted from opset 11 to 13: ")
    assert caught.value.hint == "export it again with opset 13 or later"


TEXT = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
g (float[N] x) => (float[N] y) { y = own.Call(x) }
<domain: "own", opset_import: ["" : 21, "own" : 1]>
Call (a) => (b) { b = Neg(a) }"""


def model(text: str = TEXT) -> ir.Model:
    return ir.from_proto(parser.parse_model(text))


def test_a_function_is_put_in_the_place_of_its_call():
    inlined = inline_functions(model())
    assert [node.op_type for node in inlined.graph] == ["Neg"]
    assert not inlined.functions
    onnx.checker.check_model(ir.to_proto(inlined))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.replace('"" : 21, "own" : 1]>\nCall', '"" : 20, "own" : 1]>\nCall'), "version 21 in the model"),
        (TEXT.replace("Neg(a)", "own.Call(a)"), "Cyclic"),
    ],
    ids=["another opset", "calls itself"],
)
def test_what_cannot_be_inlined_is_refused(text: str, says: str):
    with pytest.raises(InvalidOnnxError, match=says):
        inline_functions(model(text))

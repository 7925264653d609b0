"""Models of an old opset: what was an attribute is an input, and every number is the same."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.inlining import LARGE
from ptq_cli.models.opset import opset_of, raise_opset
from ptq_cli.models.preparing.prepare_graph import prepare_model
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.unit.models.loading.sources import noise
from tests.unit.models.older_operators import OLDER
from tests.unit.plan.graphs import run, sample

GIVEN = {
    "upsample_dynamic": {"s": np.array([1, 1, 2, 2], np.float32)},
    "softmax_of_unknown_rank": {"s": np.array([2, 3, 4])},
}
OPERATORS = {
    "softmax_over_an_inner_axis": "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }",
    "softmax_by_default": "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }",
    "log_softmax": "(float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis=1>(x) }",
    "squeeze": "(float[N,1,4] x) => (float[N,4] y) { y = Squeeze<axes=[1]>(x) }",
    "unsqueeze": "(float[N,4] x) => (float[N,1,4] y) { y = Unsqueeze<axes=[1]>(x) }",
    "split": "(float[N,4] x) => (float[N,1] y, float[N,3] z) { y, z = Split<axis=1, split=[1,3]>(x) }",
    "reduce_sum": "(float[N,4] x) => (float[N] y) { y = ReduceSum<axes=[1], keepdims=0>(x) }",
    "dropout": "(float[N,4] x) => (float[N,4] y) { y = Dropout(x) }",
    "clip": "(float[N,4] x) => (float[N,4] y) { a = Constant<value = float {-0.5}>()\n y = Clip(x, a) }",
    "pad": "(float[N,4] x) => (float[N,8] y) { p = Constant<value = int64[4] {0,2,0,2}>()\n y = Pad(x, p) }",
    "lstm": "(float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[5,1,2,4] y) "
    "{ y = LSTM<hidden_size=4>(x, w, r) }",
    "resize": """(float[N,1,4,4] x) => (float[N,1,8,8] y) {
        r = Constant<value = float[0] {}>()
        s = Constant<value = float[4] {1,1,2,2}>()
        y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, r, s) }""",
    "nested": """(float[N,4] x, bool c) => (float[N,4] y) {
        y = If(c) <
            then_branch = t () => (float[N,4] p) { p = Softmax(x) },
            else_branch = e () => (float[N,4] q) { u = Unsqueeze<axes=[0]>(x)
                q = Squeeze<axes=[0]>(u) }> }""",
}


def parsed(text: str, opset: int) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> g {text}'))


@each_case("opset", [11, 12])
@each_case("name", OPERATORS)
def test_the_converted_model_computes_the_same(name: str, opset: int):
    model = parsed(OPERATORS[name], opset)
    inputs = {key: np.asarray(array) for key, array in sample(model, seed=4, batch=3).items()}
    expected = run(model, inputs)
    prepared = prepare_model(model, "m.onnx")
    assert (prepared.opset_before, prepared.opset, prepared.is_changed) == (opset, 13, True)
    for found, wanted in zip(run(prepared.model, inputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


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


@each_case("name", OLDER)
def test_an_old_operator_computes_the_same_in_onnxruntime_before_and_after(name: str):
    opsets, text = OLDER[name]
    for opset in opsets:
        for as_inputs in (False, True) if opset == opsets[0] else (False,):
            proto = older(text, opset, as_inputs=as_inputs)
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

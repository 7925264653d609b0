"""What preparation folds, in exported and in foreign graphs."""

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.layer_names import name_graph
from ptq_cli.models.preparing.prepare_graph import prepare
from tests.each_case import each_case
from tests.unit.models.loading.sources import names, noise, operators, prepared, source_of
from tests.unit.plan.graphs import build, run, sample

nn = torch.nn


def normalized(*layers: nn.Module) -> nn.Sequential:
    module = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for layer in module:
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.running_mean.uniform_(-1, 1)
                layer.running_var.uniform_(0.5, 2)
                layer.weight.uniform_(0.5, 2)
    return module


FOLDED = {
    "conv": (normalized(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), noise(2, 3, 8, 8), ["Conv"]),
    "conv_without_bias": (
        normalized(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)),
        noise(2, 3, 8, 8),
        ["Conv"],
    ),
    "depthwise": (normalized(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)), noise(2, 4, 8, 8), ["Conv"]),
    "conv_transpose": (
        normalized(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)),
        noise(2, 3, 8, 8),
        ["ConvTranspose"],
    ),
    "linear": (normalized(nn.Linear(8, 4), nn.BatchNorm1d(4)), noise(2, 8), ["Gemm"]),
}


@each_case("case", FOLDED)
def test_batch_normalization_is_folded_into_the_layer_before_it(case):
    module, example, expected = FOLDED[case]
    model = prepared(module, input=example)
    assert operators(model) == expected
    assert names(model) == ["0"]
    np.testing.assert_allclose(
        run(model, {"input": example})[0], source_of(module).run({"input": example})[0], atol=1e-5
    )


NORM = "float[4] s, float[4] t, float[4] m, float[4] v"
FOREIGN = {
    "conv": ("float[N,3,8,8] x", f"float[4,3,3,3] w, float[4] b, {NORM}", "c = Conv(x, w, b)", ["Conv"]),
    "conv_without_bias": ("float[N,3,8,8] x", f"float[4,3,3,3] w, {NORM}", "c = Conv(x, w)", ["Conv"]),
    "conv_transpose": (
        "float[N,3,8,8] x",
        f"float[3,4,3,3] w, float[4] b, {NORM}",
        "c = ConvTranspose(x, w, b)",
        ["ConvTranspose"],
    ),
    "gemm": ("float[N,8] x", f"float[8,4] w, float[4] b, {NORM}", "c = Gemm(x, w, b)", ["Gemm"]),
    "gemm_transposed": (
        "float[N,8] x",
        f"float[4,8] w, float[4] b, {NORM}",
        "c = Gemm<transB=1>(x, w, b)",
        ["Gemm"],
    ),
    "alone": ("float[N,4,8] x", NORM, "c = Relu(x)", ["Relu", "BatchNormalization"]),
}


@each_case("case", FOREIGN)
def test_batch_normalization_of_a_foreign_model_is_folded(case):
    inputs, constants, layer, expected = FOREIGN[case]
    text = f"({inputs}) => (float[] y) <{constants}> {{ {layer}\n y = BatchNormalization(c, s, t, m, v) }}"
    variance: dict[str, Array] = {"v": np.array([0.5, 1.0, 2.0, 3.0], np.float32)}
    model = build(text, constants=variance)
    before = run(model, sample(model))
    after = prepare(model, "m.onnx")
    assert operators(after) == expected
    np.testing.assert_allclose(run(after, sample(after))[0], before[0], atol=1e-5)


def test_constants_become_initializers_and_no_initializer_is_an_input():
    model = build(
        """(float[N,4] x, float[4,4] w) => (float[] y) <float[4,4] w> {
            c = Constant<value = float[4] {1, 2, 3, 4}>()
            d = Add(c, c)
            h = MatMul(x, w)
            y = Sub(h, d) }"""
    )
    before = run(model, {"x": noise(2, 4)})
    after = prepare(model, "m.onnx")
    assert operators(after) == ["MatMul", "Sub"]
    assert [value.name for value in after.graph.inputs] == ["x"]
    np.testing.assert_array_equal(run(after, {"x": noise(2, 4)})[0], before[0])


def test_equal_constants_of_any_size_become_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[N] ids) => (float[N,90] y) {
        rows = Gather(table, ids)
        y = Gemm<transB = 1>(rows, head) }"""
    parsed = onnx.parser.parse_model(text)
    values = np.random.default_rng(0).normal(size=(90, 40)).astype(np.float32)
    for name in ("table", "head"):
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    assert list(prepare(ir.from_proto(parsed), "m.onnx").graph.initializers) == ["table"]


def test_what_nobody_reads_is_removed_and_identities_are_gone():
    model = build(
        """(float[N,4] x) => (float[] y) <float[4,4] w> {
            a = Identity(x)
            dead = MatMul(a, w)
            y = Relu(a) }"""
    )
    after = prepare(model, "m.onnx")
    assert operators(after) == ["Relu"]
    assert not after.graph.initializers


def test_shapes_are_inferred():
    model = build("(float[N,3,8,8] x) => (float[] y) <float[4,3,3,3] w> { c = Conv(x, w)\n y = Relu(c) }")
    after = prepare(model, "m.onnx")
    shape = after.graph.node(0).outputs[0].shape
    assert shape is not None
    assert list(shape)[1:] == [4, 6, 6]


def test_nodes_of_a_foreign_model_keep_their_names_and_get_their_own():
    model = build("(float[N,4] x) => (float[] y) { [same] a = Relu(x)\n [same] b = Neg(a)\n y = Abs(b) }")
    model.graph.node(2).name = ""
    name_graph(model)
    assert names(model) == ["same", "same_2", "Abs"]


# Names that clash.


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

"""What preparation folds, in exported and in foreign graphs."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.models.files import storing
from ptq_cli.models.preparing.fold_known import fold_known
from ptq_cli.models.preparing.identities import drop_identities
from ptq_cli.models.preparing.layer_names import name_graph
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.unit.models.contents import names, noise, operators
from tests.unit.plan.graphs import build, run, sample


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


# Identity operators are removed where their input can take their place, and computed the same where not.


HANDED_ON = """(float[N,4] x, bool b) => (float[N,4] y, float[N,4] z) {
    y, z = If(b) <
        then_branch = t () => (float[N,4] p, float[N,4] q) { p = Relu(x) q = Identity(p) },
        else_branch = e () => (float[N,4] c, float[N,4] d) {
            c = Abs(x)
            d = If(b) <then_branch = i () => (float[N,4] f) { f = Identity(c) },
                       else_branch = j () => (float[N,4] g) { g = Neg(c) }> }> }"""
CASES = {
    "in the middle": ("(float[N,4] x) => (float[N,4] y) { a = Relu(x) i = Identity(a) y = Neg(i) }", 1),
    "an output": ("(float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Identity(a) }", 1),
    "an input as it is": ("(float[N,4] x) => (float[N,4] y) { y = Identity(x) }", 0),
    "two outputs": ("(float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Relu(x) z = Identity(y) }", 0),
    "a branch that hands on an output": (HANDED_ON, 0),
}


@each_case("name", CASES)
def test_outputs_keep_their_names_and_values(name: str):
    text, removed = CASES[name]
    model = build(text)
    outputs = [value.name for value in model.graph.outputs]
    inputs = [
        {**sample(model, seed), **({"b": np.array(bool(seed))} if "bool b" in text else {})}
        for seed in (0, 1)
    ]
    expected = [run(model, item, optimize=False) for item in inputs]
    assert drop_identities(model) == removed
    assert [value.name for value in model.graph.outputs] == outputs
    prepared = prepare(build(text), "m.onnx")
    for item, wanted in zip(inputs, expected, strict=True):
        for other in (model, prepared):
            for one, two in zip(run(other, item, optimize=False), wanted, strict=True):
                np.testing.assert_array_equal(one, two)


# Whoever calls a prepared model asks for its inputs and outputs by the names that the file has.


SHARED = {
    "an_output_and_an_identity_of_it": "(float[N,4] y, float[N,4] o) { y = Relu(x)\n o = Identity(y) }",
    "two_identities": "(float[N,4] o, float[N,4] p) { y = Relu(x)\n o = Identity(y)\n p = Identity(y) }",
    "operators_that_are_equal": "(float[N,4] o, float[N,4] p) { o = Relu(x)\n p = Relu(x) }",
    "one_output_twice": "(float[N,4] o, float[N,4] o) { o = Relu(x) }",
    "the_input_itself": "(float[N,4] o, float[N,4] x) { o = Relu(x) }",
    "an_identity_of_the_input": "(float[N,4] o, float[N,4] p) { o = Relu(x)\n p = Identity(x) }",
}


@each_case("case", SHARED)
def test_outputs_that_hold_one_value_keep_their_names(case):
    model = build(f"(float[N,4] x) => {SHARED[case]}")
    names = [value.name for value in model.graph.outputs]
    expected = run(model, {"x": noise(3, 4)})
    after = prepare(model, "m.onnx")
    assert [value.name for value in after.graph.inputs] == ["x"]
    assert [value.name for value in after.graph.outputs] == names
    for found, wanted in zip(run(after, {"x": noise(3, 4)}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_input_in_float16_that_is_an_output_too_stays_float16():
    text = "(float16[N,4] x) => (float16[N,4] o, float16[N,4] x) { o = Relu(x) }"
    after = prepare(build(text), "m.onnx")
    assert [value.name for value in after.graph.outputs] == ["o", "x"]
    half = noise(3, 4).astype(np.float16)
    np.testing.assert_array_equal(run(after, {"x": half})[1], half)


def test_an_output_keeps_the_shape_that_inference_does_not_find():
    text = """(float[N,4] x) => (float[N,4] y, float[N,4] z) <float[4] s, float[4] b> {
        g = GroupNormalization<num_groups=2>(x, s, b) h = Softmax(g) y = Relu(h) z = Softmax(g) }"""
    outputs = prepare(build(text, 21), "m").graph.outputs
    assert [str(value.shape) for value in outputs] == ["[N,4]", "[N,4]"]


# Parts of a weight, and weights that are sliced at a size of an input, are constants before planning.


PARTS = {
    "sizes": "s = Constant<value = int64[2] {2, 6}>()\n a, b = Split<axis=-1>(w, s)",
    "equal": "a, b = Split<axis=1, num_outputs=2>(w)",
    "rest": "a, b, c = Split<axis=1, num_outputs=3>(w)",
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_a_weight_are_weights(case):
    text = f"""(float[N,4] x) => (float[N,K] y, float[N,L] z) <float[4,8] w> {{
        {PARTS[case]}\n y = MatMul(x, a)\n z = MatMul(x, b) }}"""
    model = build(text)
    expected = run(model, {"x": noise(3, 4)})
    after = prepare(model, "m.onnx")
    assert operators(after) == ["MatMul", "MatMul"]
    assert len(make_plan(after, load_target("ort-cpu")).weights) == 2
    for found, wanted in zip(run(after, {"x": noise(3, 4)}), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


@each_case("operator", NEUTRAL)
def test_only_what_adds_0_or_multiplies_by_1_is_dropped(operator):
    for off, kept in ((0.0, ["Log"]), (1e-10 if operator in ("Add", "Sub") else 1e-6, [operator, "Log"])):
        constant = np.array(NEUTRAL[operator] + off, np.float32)
        text = f"(float[N] x) => (float[N] y) <float c> {{ a = {operator}(x, c)\n y = Log(a) }}"
        assert operators(prepare(build(text, constants={"c": constant}), "m.onnx")) == kept


LEFT = {
    "an_output": "(float[2,4] a, float[2,4] b) <float[4,4] w> { a, b = Split<num_outputs=2>(w) }",
    "computed_sizes": "(float[K,4] a, float[L,4] b) <float[4,4] w> { t = Shape(x)\n a, b = Split(w, t) }",
    "an_unknown_size": "(int64[1] a) { s = Shape(x)\n a = Slice(s, zero, one) }",
    "another_step": "(int64[M] a) { s = Shape(x)\n a = Slice(s, zero, two, zero, two) }",
}


@each_case("case", LEFT)
def test_what_is_not_known_stays(case):
    constants = "zero = Constant<value = int64[1] {0}>()\n one = Constant<value = int64[1] {1}>()\n"
    constants += " two = Constant<value = int64[1] {2}>()\n"
    model = build(f"(float[N,2] x) => {LEFT[case].replace('{ ', '{ ' + constants)}")
    assert fold_known(model) == 0


def test_a_constant_on_disk_is_split_unread(tmp_path, monkeypatch):
    model = build(
        "(float[N,4] x) => (float[N,4] y) <float[4,8] w> { a, b = Split<axis=1, num_outputs=2>(w)\n"
        " c = MatMul(x, a)\n d = MatMul(x, b)\n y = Add(c, d) }"
    )
    expected = run(model, {"x": noise(3, 4)})[0]
    monkeypatch.setattr(storing, "LARGEST_BYTES", 1)
    monkeypatch.setattr(storing, "SMALLEST_EXTERNAL", 1)
    kept = storing.store_model(model, tmp_path, "model.onnx")  # with it the file would go
    assert kept.data
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert fold_known(model) == 1
    assert all(isinstance(model.graph.initializers[name].const_value, ir.LazyTensor) for name in "ab")
    np.testing.assert_allclose(
        run(prepare(model, "m.onnx"), {"x": noise(3, 4)})[0], expected, rtol=1e-5, atol=1e-6
    )

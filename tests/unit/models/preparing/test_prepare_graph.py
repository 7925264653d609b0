"""Each pass, as text: the graph before and after, and the same numbers.

Run with ``PTQ_WRITE_GRAPHS=1`` to write the texts again, and look at what changed.

What preparation folds, in exported and in foreign graphs.
"""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from ptq_cli.models.preparing.interface import name_graph
from ptq_cli.models.preparing.prepare_graph import PASSES, prepare, prepare_model
from ptq_cli.models.preparing.rewriting import run_passes
from tests.each_case import each_case
from tests.unit.models.contents import names, noise, operators
from tests.unit.models.preparing.passes.cases import LEFT_ALONE, REWRITTEN, Case
from tests.unit.plan.graphs import build, run, sample
from tests.unit.qdq.printer import graph_text

GRAPHS = Path(__file__).parents[3] / "golden" / "passes"
BY_NAME = {item.name: item for item in PASSES}


def meant(name: str) -> str:
    """Return the pass that a case is about."""
    return name.partition(".")[0]


def with_initializers(case: Case) -> ir.Model:
    """What a pass is given: constants are initializers."""
    model = case.model()
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


@each_case("name", REWRITTEN)
def test_graph_before_and_after(name: str):
    case, inputs = REWRITTEN[name], sample(REWRITTEN[name].model(), seed=1)
    model = with_initializers(case)
    expected = run(model, inputs, optimize=False)
    before = graph_text(model)
    times = run_passes(model, [BY_NAME[meant(name)]])
    text = f"before\n\n{before}\nafter {meant(name)}\n\n{graph_text(model)}"
    path = GRAPHS / f"{name}.txt"
    if os.environ.get("PTQ_WRITE_GRAPHS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
    assert times[meant(name)] >= 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    once = prepare_model(case.model(), "m.onnx")
    assert once.applied[meant(name)] >= 1 and once.is_changed
    for changed in (model, once.model):
        found = run(changed, inputs, optimize=False)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=2e-6)
    assert not any(prepare_model(once.model, "m.onnx").applied.values())


@each_case("name", LEFT_ALONE)
def test_what_is_near_and_not_the_same_stays(name: str):
    model = with_initializers(LEFT_ALONE[name])
    before = graph_text(model)
    assert not any(run_passes(model, PASSES).values())
    assert graph_text(model) == before
    assert not prepare_model(LEFT_ALONE[name].model(), "m.onnx").is_changed


def test_every_pass_has_a_case():
    assert set(map(meant, REWRITTEN)) == set(BY_NAME)


def test_a_chain_becomes_one_layer():
    chain = Case(
        graph="""(float[N,3,6,6] x) => (float[] y) <float[4,3,3,3] w, float[4,1,1] b, float[4] s, float[4] v,
            float[1,4,1,1] k> {
            c = Conv(x, w)
            d = Add(c, b)
            e = BatchNormalization(d, s, s, s, v)
            f = Mul(e, k)
            y = Sub(f, b) }""",
        constants={"v": [0.5, 1.0, 2.0, 3.0]},
    )
    model = chain.model()
    inputs = sample(model)
    expected = run(model, inputs, optimize=False)[0]
    prepared = prepare_model(model, "m.onnx")
    assert operators(prepared.model) == ["Conv"]
    assert {name: times for name, times in prepared.applied.items() if times} == {
        "batch_norm": 1,
        "bias_add": 2,
        "factor": 1,
    }
    np.testing.assert_allclose(run(prepared.model, inputs, optimize=False)[0], expected, rtol=1e-5, atol=2e-6)


def test_a_tied_weight_that_nothing_scales_stays_tied():
    text = """(float[N,4,6,6] x) => (float[] y) <float[4,4,1,1] w, float[4,1,1] b> {
        c = Conv(x, w)
        d = Add(c, b)
        y = Conv(d, w) }"""
    prepared = prepare_model(Case(text, {}).model(), "m.onnx").model
    first, second = prepared.graph
    assert first.inputs[1] is second.inputs[1]


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

"""If, Loop and Scan: what is nested is quantized inside its own graph, and what is around it as always."""

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.engine_registry import count_kernels
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample, serialized, sqnr_db

BRANCHES = """<then_branch = t () => (float[N,4] a) { a = THEN },
    else_branch = e () => (float[N,4] b) { b = ELSE }>"""


def branch(then: str, otherwise: str) -> str:
    return f"If(c) {BRANCHES.replace('THEN', then).replace('ELSE', otherwise)}"


LOOP = """n = Constant<value = int64 {3}>()
    k = Constant<value = bool {1}>()
    l = Loop(n, k, h) <body = b (int64 i, bool ci, float[N,4] s) => (bool co, float[N,4] t) {
        co = Identity(ci)
        p = MatMul(s, w)
        q = Add(p, h)
        t = Tanh(q) }>"""
NESTED = """n = Constant<value = int64 {3}>()
    k = Constant<value = bool {1}>()
    l = Loop(n, k, h) <body = b (int64 i, bool ci, float[N,4] s) => (bool co, float[N,4] t) {
        co = Identity(ci)
        t = If(c) <then_branch = t1 () => (float[N,4] a) { a = Add(s, h) },
            else_branch = e1 () => (float[N,4] d) { d = Identity(s) }> }>"""
SCAN = """z = Constant<value = int64[2] {4, 4}>()
    z0 = ConstantOfShape(z)
    f, s = Scan<num_scan_inputs = 1, body = b (float[4,4] st, float[4,4] e) => (float[4,4] so, float[4,4] o) {
        p = MatMul(st, u)
        m = Add(p, e)
        so = Tanh(m)
        o = Identity(so) }>(z0, h)"""
X = "(float[N,4] x, bool c)"
CASES = {
    # A tensor that an integer operator gives, read by a MatMul and by a branch.
    "an activation read inside and outside": (
        X,
        "h = MatMul(x, w)\n r = Relu(h)\n o = MatMul(r, u)\n "
        f"i = {branch('Add(r, x)', 'Neg(r)')}\n y = Add(o, i)",
        2,
    ),
    "an activation read inside only": (X, f"h = MatMul(x, w)\n y = {branch('Neg(h)', 'Mul(h, x)')}", 1),
    "a weight read inside and outside": (
        X,
        f"h = MatMul(x, w)\n y = {branch('MatMul(h, w)', 'Identity(h)')}",
        2,
    ),
    "a weight read inside only": (
        X,
        f"h = MatMul(x, w)\n i = {branch('MatMul(h, u)', 'Identity(h)')}\n y = MatMul(i, w)",
        3,
    ),
    "an input handed on": (X, f"i = {branch('Identity(x)', 'Neg(x)')}\n y = MatMul(i, w)", 1),
    "a layer behind": (X, f"h = MatMul(x, w)\n i = {branch('Neg(h)', 'Identity(h)')}\n y = MatMul(i, u)", 2),
    "an operator in another form inside": (
        X,
        "h = MatMul(x, w)\n y = "
        + branch("MatMul(s, u)", "Identity(h)").replace("{ a", "{ m = MatMul(h, w) s = HardSwish(m) a"),
        3,
    ),
    "Loop": ("(float[N,4] x)", f"h = MatMul(x, w)\n {LOOP}\n y = MatMul(l, u)", 3),
    "Loop with an If": (X, f"h = MatMul(x, w)\n {NESTED}\n y = MatMul(l, u)", 2),
    "Scan": ("(float[3,4,4] x)", f"h = MatMul(x, w)\n {SCAN}\n y = MatMul(s, u)", 3),
}


def model_of(case: str) -> tuple[ir.Model, int]:
    inputs, body, integer = CASES[case]
    result = "float[3,4,4] y" if case == "Scan" else "float[N,4] y"
    return build(f"{inputs} => ({result}) <float[4,4] w, float[4,4] u> {{ {body} }}"), integer


def inputs_of(model: ir.Model, *, taken: bool) -> dict[str, Array]:
    arrays = sample(model, seed=3)
    return arrays | {name: np.array(taken) for name in arrays if name == "c"}


@each_case("case", CASES)
def test_what_is_around_is_integer_and_right(case: str) -> None:
    model, integer = model_of(case)
    before = ir.to_proto(model).SerializeToString()
    prepared = prepare(model, "m.onnx")
    after = quantized(prepared, seeds=range(300))
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    counts = count_kernels(serialized(after))
    assert counts.integer["MatMul"] + counts.integer["Gemm"] == integer
    assert [value.name for value in after.graph.inputs] == [value.name for value in model.graph.inputs]
    assert [value.name for value in after.graph.outputs] == ["y"]
    for taken in (False, True):
        arrays = inputs_of(model, taken=taken)
        expected = run(before, arrays, optimize=False)[0]
        np.testing.assert_allclose(run(prepared, arrays)[0], expected, rtol=1e-4, atol=1e-5)
        for optimize in (False, True):
            assert sqnr_db(expected, run(after, arrays, optimize=optimize)[0]) > 30


def test_the_node_around_says_that_its_layers_are_listed() -> None:
    prepared = prepare(model_of("Loop with an If")[0], "m.onnx")
    reasons = {layer.name: layer.reason for layer in make_plan(prepared, load_target("ort-cpu")).layers}
    around = "runs the layers of its nested graph, which are listed by their own names"
    assert (reasons["l"], reasons["l/body/t"]) == (around, around)
    assert {"l/body/t/then_branch/a", "l/body/t/else_branch/d"} <= set(reasons)


def test_a_pair_is_in_the_graph_that_reads_it() -> None:
    prepared = prepare(model_of("a weight read inside only")[0], "m.onnx")
    after = quantized(prepared)
    inner = next(node for node in after.graph.all_nodes() if node.name == "i/then_branch/a")
    restored = [value.producer() for value in inner.inputs if value is not None]
    assert [(node.op_type, node.graph is inner.graph) for node in restored if node is not None] == [
        ("DequantizeLinear", True),
        ("DequantizeLinear", True),
    ]
    # The QuantizeLinear of what the graph captures is around it: its other readers share it.
    source = restored[0].inputs[0].producer()  # type: ignore[union-attr]
    assert source is not None and (source.op_type, source.graph) == ("QuantizeLinear", after.graph)


def test_a_weight_that_is_read_inside_and_outside_is_stored_once() -> None:
    prepared = prepare(model_of("a weight read inside and outside")[0], "m.onnx")
    after = quantized(prepared).graph.initializers
    assert "w" not in after
    assert [name for name in after if name.startswith("w.quantized")] == ["w.quantized"]

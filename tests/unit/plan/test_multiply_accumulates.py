import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx_ir.passes import common as passes

from ptq_cli.core.errors import DataShapeError
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized


def of(graph: str, sizes=None, opset: int = 20):
    return multiply_accumulates(build(graph, opset), sizes)


CASES = {
    "Conv": (
        "(float[1,4,8,8] x) => (float[1,6,8,8] y) <float[6,4,3,3] w> { y = Conv<pads=[1,1,1,1]>(x, w) }",
        6 * 8 * 8 * 4 * 9,
    ),
    "grouped Conv, strided": (
        "(float[2,4,8,8] x) => (float[2,4,4,4] y) <float[4,1,2,2] w>"
        " { y = Conv<group=4,strides=[2,2]>(x, w) }",
        2 * 4 * 16 * 4,
    ),
    "Conv of one axis": (
        "(float[1,3,10] x) => (float[1,5,8] y) <float[5,3,3] w> { y = Conv(x, w) }",
        5 * 8 * 9,
    ),
    "ConvTranspose": (
        "(float[1,4,5,5] x) => (float[1,3,10,10] y) <float[4,3,2,2] w>"
        " { y = ConvTranspose<strides=[2,2]>(x, w) }",
        4 * 25 * 3 * 4,
    ),
    "Gemm": ("(float[5,7] x) => (float[5,3] y) <float[7,3] w, float[3] b> { y = Gemm(x, w, b) }", 5 * 7 * 3),
    "Gemm, both transposed": (
        "(float[7,5] x) => (float[5,3] y) <float[3,7] w> { y = Gemm<transA=1,transB=1>(x, w) }",
        5 * 7 * 3,
    ),
    "MatMul, batched and broadcast": (
        "(float[2,3,4,5] x, float[3,5,6] z) => (float[2,3,4,6] y) { y = MatMul(x, z) }",
        2 * 3 * 4 * 6 * 5,
    ),
    "MatMul, constant left": (
        "(float[4,6] x) => (float[2,6] y) <float[2,4] w> { y = MatMul(w, x) }",
        2 * 4 * 6,
    ),
    "MatMul of vectors": ("(float[4] x, float[4] z) => (float y) { y = MatMul(x, z) }", 4),
    "Einsum": (
        '(float[2,3,4] x, float[2,4,5] z) => (float[2,3,5] y) { y = Einsum<equation="bij,bjk->bik">(x, z) }',
        2 * 3 * 4 * 5,
    ),
    "Einsum with an ellipsis": (
        "(float[2,7,3,4] x, float[4,5] z) => (float[2,7,3,5] y)"
        ' { y = Einsum<equation="...ij, jk->...ik">(x, z) }',
        2 * 7 * 3 * 4 * 5,
    ),
    "Einsum of one": ('(float[3,4] x) => (float[3] y) { y = Einsum<equation="ij->i">(x) }', 0),
    "LSTM": (
        "(float[9,2,3] x) => (float[9,1,2,5] y) <float[1,20,3] w, float[1,20,5] r>"
        " { y = LSTM<hidden_size=5>(x, w, r) }",
        9 * 2 * 4 * 5 * (3 + 5),
    ),
    "GRU in both directions": (
        "(float[9,2,3] x) => (float[9,2,2,5] y) <float[2,15,3] w, float[2,15,5] r> "
        '{ y = GRU<hidden_size=5,direction="bidirectional">(x, w, r) }',
        9 * 2 * 2 * 3 * 5 * (3 + 5),
    ),
    "RNN": (
        "(float[9,2,3] x) => (float[9,1,2,5] y) <float[1,5,3] w, float[1,5,5] r>"
        " { y = RNN<hidden_size=5>(x, w, r) }",
        9 * 2 * 5 * (3 + 5),
    ),
    "Relu": ("(float[9,2] x) => (float[9,2] y) { y = Relu(x) }", 0),
}


@each_case("name", CASES)
def test_an_operator_counts_what_its_definition_sums_up(name):
    graph, expected = CASES[name]
    work = of(graph)
    assert (work.counts, work.unknown) == ({"y": expected}, {})


@pytest.mark.parametrize(
    ("shapes", "attributes", "expected"),
    [
        ([(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 3)], {}, 2 * 4 * 6 * 7 * (8 + 3)),
        (
            [(2, 6, 32), (2, 7, 32), (2, 7, 12)],
            {"q_num_heads": 4, "kv_num_heads": 4},
            2 * 4 * 6 * 7 * (8 + 3),
        ),
    ],
    ids=["heads apart", "heads side by side"],
)
def test_attention_counts_scores_and_mixing(shapes, attributes, expected):
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("qkv", shapes, strict=True)
    ]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], "attention", **attributes)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    assert multiply_accumulates(ir.from_proto(model)).counts == {"attention": expected}


def test_sizes_that_nobody_gives_are_assumed_once_for_each_symbol_and_named():
    graph = """(float[n, t, 4] x, float[n, t, 4] z) => (float[n, t, t] y)
        { u = Transpose<perm=[0,2,1]>(z) y = MatMul(x, u) }"""
    work = of(graph)
    assert work.counts["y"] == 128 * 128 * 4
    assert work.assumed == {"x[0]": 1, "x[1]": 128}


def test_a_size_known_only_at_run_time_is_no_number_but_a_reason():
    graph = """(float[3,4] x) => (float[k,5] y) <float[4,5] w>
        { p = NonZero(x) i = Gather<axis=0>(p, z) u = Gather(x, i) y = MatMul(u, w) }"""
    graph = graph.replace("<float[4,5] w>", "<float[4,5] w, int64 z = {0}>")
    work = of(graph)
    assert work.counts["y"] is None
    assert work.unknown == {"y": "the shape of 'u' is known only when the model runs"}
    assert work.total == 0


LOOP = """(float[2,4] x, int64 n, bool k) => (float[2,4] y) <float[4,4] w> {
    five = Constant<value = int64 {5}>()
    y = Loop(TIMES, k, x) <body = b (int64 i, bool going, float[2,4] s) => (bool more, float[2,4] t) {
        more = KEEPS(going)
        t = MatMul(s, w) }> }"""
SCAN = """(float[7,2,4] x, float[2,4] z) => (float[2,4] f, float[7,2,4] y) <float[4,4] w> {
    f, y = Scan<num_scan_inputs = 1, body = b (float[2,4] s, float[2,4] e) => (float[2,4] o, float[2,4] t) {
        o = Add(s, e)
        t = MatMul(e, w) }>(z, x) }"""


@each_case(
    "graph, steps, once",
    [
        (LOOP.replace("TIMES", "five").replace("KEEPS", "Identity"), 5, {}),
        (LOOP.replace("TIMES", "n").replace("KEEPS", "Identity"), 1, {"t": "y"}),
        (LOOP.replace("TIMES", "five").replace("KEEPS", "Not"), 1, {"t": "y"}),
        (SCAN, 7, {}),
    ],
    ids=["as often as it says", "as often as an input says", "until it says so", "Scan"],
)
def test_a_layer_in_a_loop_is_counted_for_each_step(graph: str, steps: int, once: dict[str, str]) -> None:
    model = build(graph)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    work = multiply_accumulates(model)
    assert (work.counts["t"], dict(work.once)) == (2 * 4 * 4 * steps, once)


def test_an_operator_of_another_domain_is_not_taken_for_nothing():
    graph = "(float[2,2] x) => (float[2,2] y) { y = other.Conv(x) }"
    assert of(graph).unknown == {"y": "what Conv of domain 'other' computes is not known"}


def test_a_quantized_model_counts_what_its_float_model_does():
    model = build(
        """(float[n,3,8,8] x) => (float[n,10] y) <float[4,3,3,3] w, float[4] b, float[144,10] v>
        { c = Conv(x, w, b) r = Relu(c) f = Flatten(r) y = MatMul(f, v) }"""
    )
    before = multiply_accumulates(model)
    after = multiply_accumulates(quantized(model))
    assert before.total == 4 * 36 * 27 + 144 * 10
    assert {name: after.counts[name] for name in before.counts} == before.counts
    assert (after.total, after.unknown) == (before.total, {})


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(DataShapeError, match=r"input 'x' has shape \[\?, 4\], but \[3, 5\] was given"):
        of("(float[n,4] x) => (float[n,4] y) { y = Relu(x) }", {"x": (3, 5)})


def test_an_exporters_symbols_in_between_do_not_stand_against_the_numbers():
    graph = """(float[n, t, 4] x) => (float[n_times_t, 5] y) <float[4,5] w, int64[2] s = {-1, 4}>
        { u = Reshape(x, s) y = MatMul(u, w) }"""
    model = build(graph)
    next(node for node in model.graph if node.op_type == "Reshape").outputs[0].shape = ir.Shape(["n*t", 4])
    assert multiply_accumulates(model, {"x": (2, 3, 4)}).total == 6 * 4 * 5

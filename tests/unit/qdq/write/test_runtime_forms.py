"""Forms that a strict compiler asks for compute what the graph computed before."""

from dataclasses import replace

import numpy as np

from ptq_cli.core.formats import INTEGERS
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.write.padding import pad_apart
from ptq_cli.qdq.write.runtime_forms import convert_types, dequantize_bytes, give_biases, shift_bytes
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample
from tests.unit.qdq.printer import graph_text

BYTES = """(uint8[N,3,2,2] x, int32[N] k) => (float[N,3,2,2] y, float[N] h) <float s = {0.5}> {
    a = Cast<to=1>(x) y = Mul(a, s) h = Cast<to=1>(k) }"""
CONVS = """(float[N,3,8,8] x) => (float[N,4,8,8] y)
    <float[8,3,3,3] v, float[8] b, float[4,8,1,1] w, float[4] c> {
    a = Conv<pads=[1,1,1,1]>(x, v, b) r = Relu(a) y = Conv(r, w, c) }"""
SUM = """(float[N,3,8,8] x) => (float[N,3,8,8] y) <float[3,3,1,1] w> {
    a = Conv(x, w) s = Add(a, x) y = Conv(s, w) }"""


def mixed(graph, wide):
    """A graph whose tensors of some names have 16 bits, and 8 all others."""
    model, target = build(graph, opset=21), load_target("qnn")
    plan = make_plan(model, target)
    sites = {
        name: replace(site, format=INTEGERS["uint16"]) if name in wide else site
        for name, site in plan.activations.items()
    }
    return model, quantized(model, replace(plan, activations=sites))


def noise(model, other):
    inputs = sample(model)
    wanted, found = (run(item, inputs, optimize=False)[0] for item in (model, other))
    return 10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2))


def types_of(node):
    before = [value.producer() for value in node.inputs]
    return [grid_of(item).dtype.name for item in before if item is not None]


def test_bytes_become_floats_by_a_scale_of_1():
    model = build(BYTES, opset=21)
    inputs = {"x": np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2) * 10, "k": np.int32([3, -4])}
    before = run(model, inputs)
    dequantize_bytes(model)
    assert graph_text(model).splitlines()[1:6] == [
        "  s: float scalar = [0.5]",
        "  a.scale: float scalar = [1]",
        "  a.zero_point: uint8 scalar = [0]",
        "  [a/DequantizeLinear] a = DequantizeLinear(x, a.scale, a.zero_point)",
        "  [y] y = Mul(a, s)",
    ]
    assert "[h] h = Cast" in graph_text(model)
    for one, other in zip(before, run(model, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_operator_reads_the_type_that_it_makes():
    model, other = mixed(CONVS, {"y"})
    assert types_of(next(node for node in other.graph if node.name == "y")) == ["UINT8", "INT8", "INT32"]
    before = noise(model, other)
    convert_types(other)
    after = next(node for node in other.graph if node.name == "y")
    assert types_of(after) == ["UINT16", "INT8"]
    bias = model.graph.initializers["c"].const_value.numpy()
    np.testing.assert_allclose(after.inputs[2].const_value.numpy(), bias, atol=1e-3)
    assert abs(noise(model, other) - before) < 0.1 and before > 25


def test_a_coarser_type_is_asked_for_by_the_result_and_a_pair_serves_all_readers():
    model, other = mixed(SUM, {"x"})
    convert_types(other)
    pairs = [node.name for node in other.graph if ".uint8/Quantize" in (node.name or "")]
    assert pairs == ["x/DequantizeLinear.output.uint8/QuantizeLinear"]
    for node in other.graph:
        if node.op_type in ("Conv", "Add"):
            assert set(types_of(node)) <= {"UINT8", "INT8", "INT32"}
    assert noise(model, other) > 25


def test_what_has_one_type_stays_as_it_is():
    _, other = mixed(CONVS, set())
    text = graph_text(other)
    convert_types(other)
    assert graph_text(other) == text


MEAN = """(float[N,4,{size},{size}] x) => (float[] y) <float[4,4,3,3] w, float[4,4,1,1] u> {{
    c = Conv<pads=[1,1,1,1]>(x, w) {before} a = AveragePool<count_include_pad=1, {attributes}>({read})
    y = {after} }}"""
INTEGER, IN_FLOAT = "Conv(a, u)", "Identity(a)"
BESIDE = "m = MaxPool<kernel_shape=[2,2]>(c) o = Conv(m, u)"
ROUND = "kernel_shape=[3,3], pads=[1,1,1,1]"
SAME = 'auto_pad="SAME_LOWER"'
APART = {
    "shifted integers": (9, "", "c", ROUND, INTEGER, [1, 1, 1, 1]),
    "on one side": (9, "", "c", "kernel_shape=[2,3], pads=[0,2,1,0]", INTEGER, [0, 2, 1, 0]),
    "moved, with a result in float": (9, BESIDE, "m", ROUND, "Concat<axis=2>(a, o)", [1, 1, 1, 1]),
    "auto": (9, "", "c", f"kernel_shape=[4,4], strides=[2,2], {SAME}", INTEGER, [2, 2, 1, 1]),
    "auto, of any size": ("H", "", "c", f"kernel_shape=[2,2], {SAME}", INTEGER, [1, 1, 0, 0]),
    "ceil in float": (8, "", "c", f"{ROUND}, strides=[2,2], ceil_mode=1", IN_FLOAT, [1, 1, 1, 1]),
    "zeros are the integer 0": (9, "r = Relu(c)", "r", ROUND, INTEGER, None),
    "nothing is padded": (9, "", "c", "kernel_shape=[3,3], pads=[0,0,0,0]", INTEGER, None),
    "floats": (9, "", "c", ROUND, IN_FLOAT, None),
    "a step of unknown sizes": ("H", "", "c", f"kernel_shape=[3,3], strides=[2,2], {SAME}", INTEGER, None),
    "windows that begin in the padding": (
        7, "", "c", "kernel_shape=[2,2], pads=[1,1,1,1], strides=[2,2], ceil_mode=1", IN_FLOAT, None,
    ),
    "windows that could, and do not": (
        8, "", "c", "kernel_shape=[2,2], pads=[1,1,1,1], strides=[2,2], ceil_mode=1", IN_FLOAT, [1, 1, 1, 1],
    ),
}  # fmt: skip


@each_case("name", APART)
def test_zeros_that_count_in_a_mean_are_a_pad_where_the_runtimes_own_are_wrong(name):
    size, before, read, attributes, after, wanted = APART[name]
    graph = MEAN.format(size=size, before=before, read=read, attributes=attributes, after=after)
    target = load_target("openvino")
    other = quantized(build(graph), make_plan(build(graph), target, may_be_empty=True))
    width = 9 if size == "H" else size
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4, width, width)).astype(np.float32)}
    was = run(other, inputs, optimize=False)
    pad_apart(other, target)
    pads = [node for node in other.graph if node.op_type == "Pad"]
    found = [list(node.inputs[1].const_value.numpy()[[2, 3, 6, 7]]) for node in pads]
    assert found == ([wanted] if wanted else [])
    for one, same in zip(was, run(other, inputs, optimize=False), strict=True):
        np.testing.assert_array_equal(one, same)


def test_bytes_around_128_are_written_as_signed_ones():
    graph = """(float[N,4] x) => (float[N,4] y, uint8[N,4] p)
        <float s = {0.05}, uint8 z = {128}, uint8 o = {100}, uint8[4,4] k, float t = {0.01}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(k, t, z)
        m = MatMul(d, w) r = QuantizeLinear(m, s, o) y = DequantizeLinear(r, s, o)
        p = QuantizeLinear(x, t, z) }"""
    bytes_of = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
    model = build(graph, constants={"k": bytes_of})
    inputs = {"x": np.random.default_rng(1).standard_normal((64, 4)).astype(np.float32) * 4}
    before = run(model, inputs, optimize=False)
    shift_bytes(model)
    zeros = {
        node.name: node.inputs[2].const_value.numpy().item()
        for node in model.graph
        if node.op_type != "MatMul"
    }
    assert zeros == {"q": 0, "d": 0, "w": 0, "r": 100, "y": 100, "p": 128}
    np.testing.assert_array_equal(
        model.graph.initializers["k.int8"].const_value.numpy(), bytes_of.astype(int) - 128
    )
    for one, other in zip(before, run(model, inputs, optimize=False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_an_integer_result_that_is_read_in_float_gets_a_tiny_bias():
    graph = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[4,3,3,3] v, float[4,4,1,1] w> {
        a = Conv(x, v) b = Conv(a, w) m = ReduceMax<axes=[1], keepdims=1>(b) y = Sub(b, m) }"""
    target = load_target("openvino")
    model = build(graph, opset=13)
    paired = quantized(model, make_plan(model, target))
    before = run(paired, sample(model), optimize=False)[0]
    give_biases(paired, target)
    biased = {node.name: len(node.inputs) for node in paired.graph if node.op_type == "Conv"}
    assert biased == {"a": 2, "b": 3}
    np.testing.assert_array_equal(run(paired, sample(model), optimize=False)[0], before)
    give_biases(paired, load_target("ort-cpu"))
    assert biased == {node.name: len(node.inputs) for node in paired.graph if node.op_type == "Conv"}

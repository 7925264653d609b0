"""Which layers can saturate is counted in a file alone, whatever its form is."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule, UnsafePairs, unsafe_pairs, within_pairs
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.proof.portable_sums import LayerSums, portable_sums
from ptq_cli.qdq.read.quantized_file import named
from tests.contracts.byte_forms import EXACT, SATURATING, Form
from tests.each_case import each_case

TARGET = load_target("ort-cpu")


def sums_of(model: ir.Model) -> list[LayerSums]:
    graph = named(model)
    nothing = MultiplyAccumulates({node.name or "": 0 for node in graph.graph.all_nodes()}, {}, {})
    return list(portable_sums(graph, TARGET, prove_operators(graph, TARGET, nothing, None)))


def sums_of_form(form: Form, weight: np.ndarray) -> LayerSums:
    made = form.make(weight, np.full(form.activations, 255))
    (found,) = sums_of(ir.from_proto(made.model))
    return found


@each_case("form", SATURATING, ids=lambda form: form.name)
def test_pairs_are_counted_in_each_form_as_its_kernel_reads_them(form: Form) -> None:
    rule = PairRule(LARGEST_SUM, form.orders)
    axis = {2: 0 if "transB" in form.name else 1, 3: 2 if "LSTM" in form.name else 0}.get(len(form.weight), 0)
    weight = np.random.default_rng(0).integers(-127, 128, form.weight, dtype=np.int8)
    (once,) = {unsafe_pairs(weight, rule, axis)}
    times = 2 if "LSTM" in form.name else 1
    wanted = UnsafePairs(
        *(times * number for number in (once.pairs, once.of_pairs, once.channels, once.of_channels))
    )
    assert wanted.pairs
    assert sums_of_form(form, weight).unsafe == wanted
    assert not sums_of_form(form, within_pairs(weight, rule)).unsafe.pairs


@each_case("form", EXACT, ids=lambda form: form.name)
def test_depthwise_kernels_are_exact(form: Form) -> None:
    found = sums_of_form(form, np.full(form.weight, 127, np.int8))
    assert (found.unsafe.pairs, found.exact) == (0, "each group has one channel in and one out")


SCALES = "float s = {1}, uint8 z = {0}, int8 i = {0}, uint8 low = {0}, uint8 high = {127}, int8 half = {63}"
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
SIGNED = "q = QuantizeLinear(x, s, i) d = DequantizeLinear(q, s, i)"
PRODUCT = "e = DequantizeLinear(w, s, i) y = MatMul(d, e)"
ALL = "int8[2, 2] w = {127, 127, 127, 127}"


def text_sums(nodes: str, constants: str = ALL) -> list[tuple[str, int, str]]:
    text = f"""<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
        g (float[3, 2] x) => (float[3, 2] y) <{SCALES}, {constants}> {{ {nodes} }}"""
    found = sums_of(ir.from_proto(onnx.parser.parse_model(text)))
    return [(item.op, item.unsafe.pairs, item.exact) for item in found]


@each_case(
    "nodes, constants, pairs, exact",
    [
        (f"{PAIR} {PRODUCT}", ALL, 2, ""),
        (f"{SIGNED} {PRODUCT}", ALL, 2, ""),
        (f"{PAIR} {PRODUCT}", "int8[2, 2] w = {64, 127, 64, -127}", 0, ""),
        (
            "q = QuantizeLinear(x, s, z) c = Clip(q, low, high) d = DequantizeLinear(c, s, z)" + PRODUCT,
            ALL,
            0,
            "its activations are at most 127",
        ),
        (
            f"{PAIR} e = DequantizeLinear(w, s, z) y = MatMul(d, e)",
            "uint8[2, 2] w = {255, 255, 255, 255}",
            0,
            "its weight is uint8",
        ),
        (
            f"{PAIR} v = QuantizeLinear(w, s, i) e = DequantizeLinear(v, s, i) y = MatMul(d, e)",
            "float[2, 2] w = {127, 2, 127, 2}",
            1,
            "",
        ),
        (
            f"{PAIR} c = Cast<to=3>(w) t = Transpose<perm=[1, 0]>(c)"
            "e = DequantizeLinear(t, s, i) y = MatMul(d, e)",
            "int32[2, 2] w = {127, 127, 2, 2}",
            1,
            "",
        ),
        (
            f"{PAIR} t = DequantizeLinear(w, s, i) e = Transpose<perm=[1, 0]>(t) y = MatMul(d, e)",
            "int8[2, 2] w = {127, 127, 2, 2}",
            1,
            "",
        ),
        (
            "q = QuantizeLinear(x, s, i) p = MatMulInteger(q, w, i, i) y = Cast<to=1>(p)",
            ALL,
            0,
            "its activations are int8",
        ),
        (
            "q = QuantizeLinear(x, s, i) p = MatMulInteger(w, q, z, i) y = Cast<to=1>(p)",
            "uint8[3, 3] w = {200, 57, 1, 200, 56, 1, 1, 2, 3}",
            1,
            "",
        ),
        (
            "q = QuantizeLinear(x, s, z) p = MatMulInteger(w, q, i, z) y = Cast<to=1>(p)",
            "int8[3, 3] w = {127, 127, 127, 127, 127, 127, 127, 127, 127}",
            0,
            "its weight is its first factor",
        ),
    ],
    ids=[
        "weights-of-127",
        "int8-activations",
        "sums-of-128",
        "activations-of-7-bits",
        "unsigned-weights",
        "floats-behind-a-pair",
        "packed",
        "turned-behind-the-pair",
        "int8-operator",
        "unsigned-weight-first",
        "signed-weight-first",
    ],
)
def test_what_a_kernel_multiplies_decides(nodes: str, constants: str, pairs: int, exact: str) -> None:
    ((_, found, reason),) = text_sums(nodes, constants)
    assert (found, reason) == (pairs, exact)


@pytest.mark.parametrize(
    "nodes",
    [
        f"{PAIR} y = MatMul(d, f)",
        "e = DequantizeLinear(w, s, i) y = MatMul(x, e)",
        f"{PAIR} t = Transpose<perm=[1, 0]>(d) m = MatMul(d, t) y = MatMul(m, f)",
    ],
    ids=["float-weight", "float-activations", "activations-by-activations"],
)
def test_other_layers_are_not_counted(nodes: str) -> None:
    assert (
        text_sums(nodes, f"{ALL}, float[2, 2] f = {{1, 2, 3, 4}}, float[3, 2] g = {{1, 2, 3, 4, 5, 6}}") == []
    )


def test_convinteger_is_exact() -> None:
    constants = "int8[4, 2, 1] w = {127, 127, 127, 127, 127, 127, 127, 127}"
    nodes = (
        "q, t, v = DynamicQuantizeLinear(x) p = Unsqueeze(q, a) c = ConvInteger(p, w, v, i) y = Cast<to=1>(c)"
    )
    assert text_sums(nodes, f"{constants}, int64[1] a = {{2}}") == [
        ("ConvInteger", 0, "ConvInteger adds in 32 bits")
    ]

"""Tensors of nested graphs are handed out: the same values as their operators compute, of every step."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import serialize
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap
from tests.each_case import each_case

X = np.arange(6, dtype=np.float32).reshape(2, 3)
IF = """(float[a,b] x, bool c) => (float[a,b] y) {
    y = If(c) <then_branch = t () => (float[a,b] p) { n = Neg(x) p = Add(n, x) },
               else_branch = e () => (float[a,b] q) { q = Abs(x) }> }"""
LOOP = """(float[a,b] x, int64 n) => (float[a,b] y, float[k,a,b] all) <bool go = {1}> {
    y, all = Loop(n, go, x) <body = l (int64 i, bool g, float[a,b] s)
        => (bool h, float[a,b] t, float[a,b] o) {
        h = Identity(g) t = Add(s, s) o = Neg(s) }> }"""
GROWING = """(float[a,b] x, int64 n) => (float[c,b] y) <bool go = {1}> {
    y = Loop(n, go, x) <body = l (int64 i, bool g, float[d,b] s) => (bool h, float[e,b] t) {
        h = Identity(g) t = Concat<axis = 0>(s, x) }> }"""
ENDLESS = """(float[a,b] x) => (float[c,d] all) <float three = {3}, bool go = {1}> {
    all = Loop(, go) <body = l (int64 i, bool g) => (bool h, float[b] o) {
        c = Cast<to = 1>(i) h = Less(c, three) o = Mul(x, c) }> }"""
SCAN = """(float[a,b] x, float[b] z) => (float[b] f, float[a,b] y) {
    f, y = Scan<num_scan_inputs = 1, scan_input_directions = [DIRECTION], scan_output_directions = [BACK],
        body = l (float[b] s, float[b] e) => (float[b] t, float[b] o) { t = Add(s, e) o = Neg(t) }>(z, x) }"""
IF_IN_LOOP = """(float[a,b] x, int64 n) => (float[a,b] y) <bool go = {1}, int64 one = {1}> {
    y = Loop(n, go, x) <body = l (int64 i, bool g, float[a,b] s) => (bool h, float[a,b] t) {
        h = Identity(g)
        first = Less(i, one)
        t = If(first) <then_branch = v () => (float[a,b] p) { p = Add(s, s) },
                       else_branch = w () => (float[a,b] q) { q = Neg(s) }> }> }"""
IF_IN_SCAN = """(float[a,b] x, float[b] z) => (float[b] f) <float zero = {0}> {
    f = Scan<num_scan_inputs = 1, body = l (float[b] s, float[b] e) => (float[b] t) {
        m = ReduceMax<keepdims = 0>(e)
        c = Greater(m, zero)
        t = If(c) <then_branch = v () => (float[b] p) { p = Add(s, e) },
                   else_branch = w () => (float[b] q) { q = Neg(e) }> }>(z, x) }"""


def model_of(graph: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> g {graph}'))


def scan(direction: int, back: int) -> str:
    return SCAN.replace("DIRECTION", str(direction)).replace("BACK", str(back))


Z = np.ones(3, np.float32)
N = np.array(3)
CASES: dict[str, tuple[str, Mapping[str, Array], Mapping[str, Array]]] = {
    "taken": (IF, {"x": X, "c": np.array(True)}, {"n": -X, "q": np.zeros(0)}),
    "not taken": (IF, {"x": X, "c": np.array(False)}, {"q": np.abs(X), "n": np.zeros(0), "p": np.zeros(0)}),
    "Loop": (LOOP, {"x": X, "n": N}, {"s": [X, 2 * X, 4 * X], "t": [2 * X, 4 * X, 8 * X], "y": 8 * X}),
    "Loop without a step": (LOOP, {"x": X, "n": np.array(0)}, {"t": np.zeros(0), "y": X}),
    "Loop that carries nothing": (ENDLESS, {"x": X}, {"o": [0 * X, X, 2 * X, 3 * X], "c": np.arange(4)}),
    "sizes that grow": (GROWING, {"x": X, "n": N}, {"t": [X] * (2 + 3 + 4), "y": np.concatenate([X] * 4)}),
    "Scan": (scan(0, 0), {"x": X, "z": Z}, {"e": [X[0], X[1]], "t": [Z + X[0], Z + X[0] + X[1]]}),
    "Scan backwards": (scan(1, 1), {"x": X, "z": Z}, {"e": [X[1], X[0]], "t": [Z + X[1], Z + X[0] + X[1]]}),
    "If in Loop": (IF_IN_LOOP, {"x": X, "n": N}, {"p": 2 * X, "q": [-2 * X, 2 * X], "s": [X, 2 * X, -2 * X]}),
    "If in Scan": (
        IF_IN_SCAN,
        {"x": np.stack([Z, -Z, 2 * Z]), "z": Z},
        {"p": [2 * Z, 3 * Z], "q": Z, "e": [Z, -Z, 2 * Z]},
    ),
}


@each_case("case", CASES)
def test_the_values_are_those_of_every_step(case: str) -> None:
    graph, inputs, wanted = CASES[case]
    model = model_of(graph)
    before = serialize(model).content
    found = Session(tap(model, list(wanted)), threads=1).run(inputs)
    for (name, values), array in zip(wanted.items(), found, strict=True):
        expected = np.concatenate([np.ravel(item) for item in values]) if isinstance(values, list) else values
        np.testing.assert_array_equal(array, expected if name in "y" else np.ravel(expected), err_msg=name)
    assert serialize(model).content == before

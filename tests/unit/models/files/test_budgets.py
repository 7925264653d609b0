"""Small files that ask for work without end are refused before it begins."""

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from ptq_cli.core.errors import InvalidOnnxError, RuntimeFailedError
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.preparing.simplify import simplify
from ptq_cli.runtime.session import Session
from tests.unit.plan.graphs import build

HEAD = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]>'
ENDLESS = 2**63 - 1


def loaded(text: str, folder: Path) -> onnx.ModelProto:
    onnx.save(parser.parse_model(f"{HEAD} {text}"), folder / "m.onnx")
    return load_onnx(folder / "m.onnx")


def function(name: str, body: str) -> str:
    return f'<domain: "own", opset_import: ["" : 18, "own" : 1]> {name} (x) => (y) {{ {body} }}'


def doubling(count: int) -> str:
    first = function("f0", "a = Relu(x) y = Relu(a)")
    rest = [function(f"f{i}", f"a = own.f{i - 1}(x) y = own.f{i - 1}(a)") for i in range(1, count)]
    return f"g (float[4] x) => (float[4] y) {{ y = own.f{count - 1}(x) }} {first} {' '.join(rest)}"


def loop(steps: int, condition: str, body: str = "r = Add(a, a)") -> str:
    inner = f"b (int64 i, bool c, float[4] a) => (bool go, float[4] r) {{ go = {condition} {body} }}"
    return (
        f"g (float[4] x) => (float[4] y) <int64 n = {{{steps}}}, bool t = {{1}}, int64 most = {{{ENDLESS}}}> "
        f"{{ y = Loop<body = {inner}>(n, t, x) }}"
    )


def test_functions_that_double_are_refused_before_they_are_inlined(tmp_path: Path):
    with pytest.raises(InvalidOnnxError, match=r"would make 16,777,216 nodes, more than 250,000"):
        loaded(doubling(24), tmp_path)
    assert loaded(doubling(4), tmp_path)


@pytest.mark.parametrize("calls", [{"a": "a"}, {"a": "b", "b": "a"}])
def test_functions_that_call_themselves_are_refused(calls: dict[str, str], tmp_path: Path):
    functions = [function(name, f"y = own.{called}(x)") for name, called in calls.items()]
    with pytest.raises(InvalidOnnxError, match=r"the function 'a' of model 'm\.onnx' calls itself"):
        loaded(f"g (float[4] x) => (float[4] y) {{ y = own.a(x) }} {' '.join(functions)}", tmp_path)


def test_a_loop_that_cannot_end_early_is_refused(tmp_path: Path):
    with pytest.raises(InvalidOnnxError, match=r"takes 1,000,000,000 steps, more than 10,000,000"):
        loaded(loop(10**9, "Identity(c)"), tmp_path)
    inner = "d (int64 j, bool e, float[4] v) => (bool on, float[4] w) { on = Identity(e) w = Add(v, v) }"
    nested = f"k = Identity(c) r = Loop<body = {inner}>(n, c, a)"
    assert loaded(loop(3_000, "Identity(c)"), tmp_path)
    with pytest.raises(InvalidOnnxError, match=r"takes 16,000,000 steps"):
        loaded(loop(4_000, "Identity(t)", nested.replace("(n, c, a)", "(n, t, a)")), tmp_path)


def test_a_loop_without_a_limit_whose_condition_is_computed_is_taken(tmp_path: Path):
    assert loaded(loop(ENDLESS, "Less(i, i)"), tmp_path)


def test_a_run_ends_after_its_time(tmp_path: Path):
    loaded(loop(ENDLESS, "Less(i, most)"), tmp_path)
    session = Session(tmp_path / "m.onnx", threads=1)
    with pytest.raises(RuntimeFailedError):
        session.run({"x": np.ones(4, np.float32)}, most_seconds=0.2)


@pytest.mark.parametrize(
    "node",
    [
        "ConstantOfShape(s)",
        "Expand(one, s)",
        "Tile(one, s)",
        "Pad(one, long)",
        "Resize(one, , large)",
        "MatMul(column, row)",
    ],
)
def test_a_result_that_no_machine_holds_is_refused(node: str, tmp_path: Path):
    text = f"""g (float[1,1] x) => (float[N,M] y) <int64[2] s = {{2000000,2000000}}, float[1,1] one = {{1.0}},
        int64[4] long = {{0,0,1999999,1999999}}, float[2] large = {{2000000.0,2000000.0}}>
        {{ k = Constant<value = int64[2] {{2000000,1}}>() c = ConstantOfShape(k) column = Relu(c)
        row = Transpose<perm=[1,0]>(column) a = {node} y = Add(a, x) }}"""
    with pytest.raises(InvalidOnnxError, match=r"would have 4,000,000,000,000 elements"):
        loaded(text, tmp_path)


def test_a_large_result_of_constants_is_not_computed_to_be_thrown_away():
    model = build(
        "(float[1,1] x) => (float[N,M] y) { s = Constant<value = int64[2] {3000,3000}>() "
        "a = ConstantOfShape(s) b = Exp(a) y = Add(b, x) }"
    )
    tracemalloc.start()
    simplified = simplify(model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [node.op_type for node in simplified.graph] == ["ConstantOfShape", "Exp", "Add"]
    assert peak < 9_000_000

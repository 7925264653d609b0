"""Parts of a weight, and weights that are sliced at a size of an input, are constants before planning."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.models.files import storing
from ptq_cli.models.preparing.fold_known import fold_known
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.unit.models.contents import noise, operators
from tests.unit.plan.graphs import build, run

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

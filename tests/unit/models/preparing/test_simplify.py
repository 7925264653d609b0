"""Identity operators are removed where their input can take their place, and computed the same where not."""

import numpy as np

from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.models.preparing.simplify import drop_identities
from tests.each_case import each_case
from tests.unit.plan.graphs import build, run, sample

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

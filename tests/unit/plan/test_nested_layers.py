"""Layers of nested graphs that stay float, and why."""

import pytest

from ptq_cli.plan.nested_layers import layers_never_run
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.unit.plan.graphs import build

IF = """(float[N,4] x, bool c) => (float[N,4] y) <float[4,4] w> {
    [stem] h = MatMul(x, w)
    [gate] y = If(c) <then_branch = t () => (float[N,4] a) { [deep] a = MatMul(h, w) },
                      else_branch = e () => (float[N,4] b) { [shallow] b = Neg(h) }> }"""
SCAN = """(float[3,4] x) => (float[4] f, float[4,3] y) <float[4,4] w, float[4] z> {
    [stem] h = MatMul(x, w)
    [scan] f, y = Scan<num_scan_inputs = 1, scan_output_axes = [1],
        body = b (float[4] s, float[4] e) => (float[4] t, float[4] o) {
            [cell] t = MatMul(s, w)
            [sum] o = Add(t, e) }>(z, h) }"""
UNKNOWN = "how target tensorrt treats pairs in a nested graph is not known"


@pytest.mark.parametrize(
    ("graph", "target", "layer", "reason"),
    [
        (IF, "tensorrt", "deep", f"is inside If 'gate': {UNKNOWN}"),
        (
            SCAN,
            "ort-cpu",
            "cell",
            "is inside Scan 'scan', which stacks its results along another axis than the first: they are not "
            "measured",
        ),
    ],
    ids=["another runtime", "stacked along another axis"],
)
def test_a_layer_says_why_it_stays_float(graph: str, target: str, layer: str, reason: str) -> None:
    plan = make_plan(build(graph), load_target(target))
    layers = {item.name: item for item in plan.layers}
    assert (layers[layer].quantized, layers[layer].reason) == (False, reason)
    assert layers["stem"].quantized
    assert {site.node for site in plan.weights} == {"stem"}


def test_what_was_never_run_is_told_by_its_tensors() -> None:
    graph = build(IF).graph
    assert layers_never_run(graph, ["h"]) == {}
    assert list(layers_never_run(graph, ["a"])) == ["deep"]

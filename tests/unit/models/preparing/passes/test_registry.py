"""Each pass, as text: the graph before and after, and the same numbers.

Run with ``PTQ_WRITE_GRAPHS=1`` to write the texts again, and look at what changed.
"""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from ptq_cli.models.preparing.passes.registry import PASSES
from ptq_cli.models.preparing.prepare_graph import prepare_model
from ptq_cli.models.preparing.rewriting import run_passes
from tests.each_case import each_case
from tests.unit.models.contents import operators
from tests.unit.models.preparing.passes.cases import LEFT_ALONE, REWRITTEN, Case
from tests.unit.plan.graphs import run, sample
from tests.unit.qdq.printer import graph_text

GRAPHS = Path(__file__).parents[4] / "golden" / "passes"
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

from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.amax.choice import Choice, fixed_point_parameters
from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.core.formats import UINT8
from ptq_cli.plan.fitted_grids import KEPT_CLAMP, expose_clamps, fit_clamps, raise_zero_points
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.runtime.engine_registry import count_kernels
from tests.quantized import quantize_model
from tests.unit.plan.graphs import build, run, sample, serialized

TWO_CONVS = """(float[b,3,8,8] x) => (float[b,4,4,4] y)
<float[6,3,3,3] w1, float[4,6,3,3] w2, float low = {0}, float high = {HIGH}> {
  c = Conv(x, w1)
  k = Clip(c, low, high)
  y = Conv(k, w2)
}"""
GRID = fixed_point_parameters(Choice(0.0, 1.5), UINT8)  # values up to almost 2


def model_and_plan(high: str):
    model = build(TWO_CONVS.replace("HIGH", high))
    return model, make_plan(model, load_target("ort-cpu"))


def exported(model, plan):
    def decide(site):
        return GRID if site.source == "k" else parameters_from_range(-4.0, 4.0, site.format)

    return quantize_model(model, plan, decide_all(model, plan, decide))


def test_a_clip_inside_the_grid_stays_between_two_pairs_of_it():
    model, plan = model_and_plan("1.5")
    found = expose_clamps(model, plan, {"k": GRID})
    assert found.activations["c"].source == "k"
    assert list(found.activations) == ["x", "c", "k", "y"]
    layers = {layer.name: layer for layer in found.layers}
    assert (layers["k"].quantized, layers["k"].reason) == (False, KEPT_CLAMP)
    assert layers["c"].quantized
    graph = exported(model, found)
    assert [node.op_type for node in graph.graph].count("QuantizeLinear") == 4
    kernels = count_kernels(serialized(graph))
    assert (kernels.integer["Conv"], kernels.floating["Conv"]) == (2, 0)


def test_the_values_are_those_of_a_clip_before_the_grid():
    model, plan = model_and_plan("1.5")
    inputs = sample(model)
    plain = run(exported(model, plan), inputs, optimize=False)[0]
    exposed = run(exported(model, expose_clamps(model, plan, {"k": GRID})), inputs, optimize=False)[0]
    np.testing.assert_array_equal(plain, exposed)


@pytest.mark.parametrize("high", ["2.0", "100.0"])
def test_a_clip_that_the_grid_makes_redundant_disappears(high):
    model, plan = model_and_plan(high)
    assert expose_clamps(model, plan, {"k": GRID}) == plan


def test_what_floats_alone_read_is_not_quantized_again():
    graph = TWO_CONVS.replace("HIGH", "1.5").replace("float[b,4,4,4] y", "float[b,6,6,6] y")
    graph = graph.replace("y = Conv(k, w2)", "y = Erf(k)").replace(", float[4,6,3,3] w2", "")
    model = build(graph)
    plan = make_plan(model, load_target("ort-cpu"))
    found = expose_clamps(model, plan, {"k": GRID})
    assert list(found.activations) == ["x", "c"]
    assert count_kernels(serialized(exported(model, found))).integer["Conv"] == 1


def test_the_grid_behind_a_clip_of_a_lower_bound_begins_above_it():
    text = TWO_CONVS.replace("Clip(c, low, high)", "Clip(c, low)").replace(
        "{0}, float high = {HIGH}", "{-0.5}"
    )
    model = build(text)
    plan = make_plan(model, load_target("ort-cpu"))
    rounded = {"k": parameters_from_range(-0.5, 6.7, UINT8)}
    floats = []
    for found in (rounded, fit_clamps(model, plan, rounded)):
        decided = decide_all(
            model, plan, lambda site, found=found: found.get(site.source, parameters_from_range(-4, 4, UINT8))
        )
        floats.append(count_kernels(serialized(quantize_model(model, plan, decided))).floating["Conv"])
    assert floats == [1, 0]


@pytest.mark.parametrize(
    ("target", "zeros"), [("openvino", {"x": 0, "b": 1, "c": 9}), ("ort-cpu", {"x": 0, "b": 0, "c": 9})]
)
def test_a_gemm_of_openvino_reads_no_least_zero_point_unless_a_conv_reads_it_too(target, zeros):
    """OpenVINO 2026.4 on ARM is wrong for it: 11.6 dB instead of 34 dB on the CNN sample."""
    model = build("""(float[n,4,1,1] x, float[n,4] b, float[n,4] c) => (float[n,4,1,1] y, float[n,2] z)
    <float[4,4,1,1] w, float[1,2] v, float[4,2] u> {
      y = Conv(x, w) a = MatMul(x, v) p = Gemm(b, u) q = MatMul(c, u) z = Add(p, q) }""")
    loaded = load_target(target)
    plan, grid = make_plan(model, loaded), parameters_from_range(0.0, 6.0, UINT8)
    given = {name: replace(grid, zero_point=np.asarray(9 if name == "c" else 0)) for name in zeros}
    found = raise_zero_points(model, plan, loaded, given)
    assert {name: int(parameters.zero_point) for name, parameters in found.items()} == zeros

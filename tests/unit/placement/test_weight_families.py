import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from ptq_cli.amax.decide import next_powers_of_two
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.rules import Target, WeightRule
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.quantizers.automatic_scale import AutoScale
from ptq_cli.quantizers.dorefa import encode_dorefa
from ptq_cli.quantizers.fixed_point import quantize_fixed_point
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import OverrideSettings, WeightSettings
from tests.each_case import each_case
from tests.placements import placed
from tests.quantized import quantize_model
from tests.unit.plan.graphs import build, run, sample, weight_noise

GEMM = "(float[N,8] x) => (float[N,4] y) <float[8,4] w, float[4] b> { y = Gemm(x, w, b) }"
INPUT = QuantParameters(np.array(2.0**-6, np.float32), np.array(128), UINT8)


def decided(
    settings: WeightSettings, target: Target | str = "ort-cpu", channel: float = 1.0, bias: float = 0.5
):
    """A Gemm whose second channel is scaled by ``channel``, with a bias; decided and exported."""
    weight = weight_noise("w", [8, 4])
    weight[:, 1] *= np.float32(channel)
    model = build(GEMM, opset=21, constants={"w": weight, "b": np.full(4, bias, np.float32)})
    placement = placed(model, replace(Recipe(), weights=settings), target)
    found = decide_all(model, placement.plan, lambda _: INPUT, lambda site: placement.quantizers[site])
    (site,) = placement.plan.weights
    return weight, found, site, quantize_model(model, placement.plan, found), model


@pytest.mark.parametrize("alpha", ["none", "auto_po2"])
def test_a_scale_of_fixed_point_that_a_bias_widens_stays_a_power_of_two(alpha):
    _, found, site, _, _ = decided(
        WeightSettings(quantizer="fixed_point", alpha=alpha), channel=1e-6, bias=30.0
    )
    assert found.widened == {"w": 1}
    mantissa, exponent = np.frexp(found.weights[site].scale)
    assert (mantissa == 0.5).all()
    assert 2.0 ** (exponent[1] - 1) >= 30.0 / (2.0**-6 * 2**30)


def test_integers_of_a_found_power_of_two_are_those_of_the_quantizer():
    weight, found, site, _, _ = decided(WeightSettings(quantizer="fixed_point", alpha="auto_po2", bits=5))
    expected = quantize_fixed_point(torch.tensor(weight), 5, alpha="auto_po2", auto=AutoScale(axis=1))
    np.testing.assert_array_equal(found.decided[site].stored.integers, expected.integers.numpy())
    np.testing.assert_array_equal(found.weights[site].scale, expected.scale.numpy())


@each_case("bias", [0.3, 1e-3, -250.0])
@each_case("settings", [WeightSettings(quantizer="dorefa"), WeightSettings(quantizer="fixed_point")])
def test_a_channel_of_zeros_keeps_its_bias(settings, bias):
    _, found, _, quantized, model = decided(settings, channel=0.0, bias=bias)
    assert found.widened == {}
    outputs = run(quantized, sample(model), optimize=False)[0]
    np.testing.assert_allclose(outputs[:, 1], bias, rtol=1e-5)


def test_a_widened_weight_of_dorefa_is_quantized_with_the_wider_scale():
    weight, found, site, _, _ = decided(WeightSettings(quantizer="dorefa"), channel=1e-6, bias=30.0)
    assert found.widened == {"w": 1}
    expected = encode_dorefa(torch.tensor(weight), torch.tensor(found.weights[site].scale), 4, axis=1)
    np.testing.assert_array_equal(found.decided[site].stored.integers, expected.indices.numpy())


FLAT = {
    "scaled": WeightSettings(bits=4),
    "dorefa": WeightSettings(quantizer="dorefa"),
    "centers": WeightSettings(quantizer="centers"),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_target_that_unpacks_nothing_gets_a_byte_for_each(name):
    plain = replace(load_target("ort-cpu"), weight=WeightRule(packed=False))
    _, found, site, quantized, model = decided(FLAT[name], plain)
    assert found.decided[site].stored.bits == 8
    *_, packed, _ = decided(FLAT[name])
    inputs = sample(model)
    expected = run(packed, inputs, optimize=False)[0]
    np.testing.assert_array_equal(run(quantized, inputs, optimize=False)[0], expected)


def test_readers_of_one_weight_may_have_quantizers_of_their_own():
    text = """(float[N,8] x) => (float[N,8] y, float[N,8] z) <float[8,8] w>
        { y = MatMul(x, w)
          z = MatMul(x, w) }"""
    model = build(text, opset=21)
    overrides = [OverrideSettings(match="z", weights=WeightSettings(quantizer="dorefa"))]
    placement = placed(model, replace(Recipe(), override=overrides))
    found = decide_all(model, placement.plan, lambda _: INPUT, lambda site: placement.quantizers[site])
    quantized = quantize_model(model, placement.plan, found)
    y, z = run(quantized, sample(model), optimize=False)
    assert 0 < np.abs(y - z).max() < 1
    assert {"w.quantized", "w.indices", "w.table"} <= set(quantized.graph.initializers)
    assert placement.weight_counts == {"scaled, 8 bits": 1, "dorefa, 4 bits": 1}
    assert placement.settings.overridden == ("w",)


def test_a_layer_of_centers_asks_for_no_quantized_input():
    placement = placed(build(GEMM), replace(Recipe(), weights=WeightSettings(quantizer="centers")))
    assert placement.plan.activations == {}
    assert placement.plan.biases == ()
    (layer,) = placement.plan.layers
    assert (layer.quantized, layer.weight) == (False, "centers (16), 4 bits")


def test_plain_settings_leave_the_target_s_plan():
    model = build(GEMM)
    placement = placed(model, Recipe())
    assert placement.is_plain
    assert placement.plan == make_plan(model, load_target("ort-cpu"))


def test_powers_of_two_are_their_own_next_ones():
    scale = np.float32([2.0**-126, 1.0, 1.0000001, 2.0**100])
    assert next_powers_of_two(scale).tolist() == [2.0**-126, 1.0, 2.0, 2.0**100]


def test_scaled_weights_need_no_torch():
    code = "import sys, ptq_cli.pipeline.run_export; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"

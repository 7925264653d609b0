"""A finished scale stays as it is, and nothing else changes a scale."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ptq_cli
from ptq_cli.amax.choice import (
    Choice,
    bits_before_point,
    fixed_point_parameters,
    step_parameters,
)
from ptq_cli.amax.decide import (
    BiasNeed,
    ScaleRules,
    check_amax_settings,
    decide,
    decide_range,
    finish_scale,
    finish_tied,
    finish_weight,
    resolve_method,
)
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize
from ptq_cli.core.errors import MissingStatisticError, UnknownNameError
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, INT8, INT8_NARROW, UINT8, NumberFormat, PerAxis
from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule
from ptq_cli.quantizers.fixed_point import fixed_point
from ptq_cli.quantizers.step import step_quantize
from ptq_cli.recipe.sections import AmaxSettings
from tests.collected import statistics_of
from tests.each_case import each_case

RULES = [
    ScaleRules(powers_of_two=two, half=half, largest_odd=odd)
    for two in (False, True)
    for half in (False, True)
    for odd in (None, 15)
]
SCALES = st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=2, max_size=2)


def parameters_of(scale: list[float], format: NumberFormat = INT8_NARROW) -> QuantParameters:
    return QuantParameters(np.float32(scale), np.zeros(2, np.int64), format, PerAxis(0))


@pytest.mark.parametrize("rules", RULES)
@given(scale=SCALES, format=st.sampled_from([INT8_NARROW, FLOAT8_E4M3FN, FLOAT4_E2M1]))
def test_a_finished_scale_is_a_fixed_point(
    rules: ScaleRules, scale: list[float], format: NumberFormat
) -> None:
    once = finish_scale(parameters_of(scale, format), rules)
    assert finish_scale(once, rules).scale.tolist() == once.scale.tolist()
    assert finish_tied(once, rules, [once, once]) is once


@pytest.mark.parametrize("rules", RULES)
@given(scale=SCALES, values=st.lists(st.floats(-100, 100, width=32), min_size=8, max_size=8))
def test_pairs_and_a_bias_widen_a_scale_and_never_narrow_it(
    rules: ScaleRules, scale: list[float], values: list[float]
) -> None:
    weight, zero = np.float32(values).reshape(2, 4), np.zeros(2, bool)
    plain = finish_scale(parameters_of(scale), rules)
    found, _ = finish_weight(
        parameters_of(scale),
        rules,
        weight,
        zero,
        pairs=PairRule(LARGEST_SUM, ((1,),)),
        bias=BiasNeed(np.float32([1e3, 0.0]), 0.01),
    )
    assert (found.scale >= plain.scale).all()
    assert finish_scale(found, rules).scale.tolist() == found.scale.tolist()


def test_nothing_else_changes_a_scale() -> None:
    # These take a part of the scales, those that recovery searched, or what an analysis would change.
    others = {
        "qdq/write/block_weights.py",
        "qdq/write/site_parameters.py",
        "recover/layer_state.py",
        "analysis/causes.py",
    }
    package = Path(ptq_cli.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace"
        if "scale" in {item.arg for item in node.keywords}
    }
    assert found - others == {"amax/decide.py"}


RANGES = [(0.0, 6.0), (0.0, 4.0), (-0.3, 0.1), (-5.0, 0.0), (0.0, 1e-6), (-1e20, 1e18)]
VALUES = np.linspace(-9, 9, 2001).astype(np.float32)


@each_case("low, high", RANGES)
@each_case("format", [UINT8, INT8], ids=["uint8", "int8"])
def test_fixed_point_is_the_quantizer_of_that_name(low, high, format):
    found = fixed_point_parameters(Choice(low, high), format)
    integer = bits_before_point(max(-low, high))
    assert 2.0 ** (integer - 1) < max(-low, high) <= 2.0**integer
    x = VALUES * np.float32(max(-low, high) / 4)
    expected = fixed_point(torch.tensor(x), 8, integer, keep_negative=low < 0)
    np.testing.assert_array_equal(fake_quantize(x, found), expected.numpy())


def test_a_given_point_holds_whatever_the_range_is():
    found = fixed_point_parameters(Choice(-100.0, 100.0), UINT8, integer=2)
    assert (float(found.scale), int(found.zero_point)) == (2.0**-5, 128)


@pytest.mark.parametrize("format", [UINT8, INT8], ids=["uint8", "int8"])
def test_a_given_step_is_the_quantizer_of_that_name_and_saturates(format):
    found = step_parameters(Choice(-1.0, 1.0), format, 0.25)
    expected = torch.clamp(step_quantize(torch.tensor(VALUES * 8), 0.25), -32.0, 31.75)
    np.testing.assert_array_equal(fake_quantize(VALUES * 8, found), expected.numpy())


@each_case("high", [6.0, 0.7, 3.3e-5, 1e9])
def test_a_step_from_amax_reaches_it_and_never_above(high):
    found = step_parameters(Choice(0.0, high), UINT8)
    top = float(found.scale) * 255
    assert high * (1 - 1e-6) < top <= high
    assert int(found.zero_point) == 0


@pytest.mark.parametrize("make", [fixed_point_parameters, step_parameters])
def test_a_tensor_that_was_always_0_has_scale_1(make):
    found = make(Choice(0.0, 0.0), UINT8)
    assert (float(found.scale), int(found.zero_point)) == (1.0, 0)


@each_case("amax, integer", [(1.0, 0), (1.0001, 1), (0.5, -1), (2.0**-24, -24)])
def test_as_few_bits_before_the_point_as_hold_amax(amax, integer):
    assert bits_before_point(amax) == integer


OUTLIER = np.concatenate([np.linspace(-1, 2, 9999), [1000.0]]).astype(np.float32)
MAX = AmaxSettings(method="max")
MOST = AmaxSettings(method="percentile", percentile=99.9)


def decide_parameters(statistics, settings, format, symmetric):
    return decide(statistics, settings, format, symmetric=symmetric).parameters


def decide_amax(statistics, settings):
    return decide_range(statistics, settings, INT8, symmetric=True).amax


@pytest.mark.parametrize("decide", [check_amax_settings, lambda s: decide_amax(statistics_of([1.0]), s)])
def test_unknown_method_names_the_nearest_and_all(decide):
    with pytest.raises(UnknownNameError) as caught:
        decide(AmaxSettings(method="percentil"))
    assert caught.value.message == "unknown amax method 'percentil' (did you mean 'percentile'?)"
    assert caught.value.hint == "known: auto, max, percentile, entropy, mse"


@each_case(
    "method, has_histogram, resolved",
    [
        ("auto", True, "percentile"),
        ("auto", False, "max"),
        ("max", True, "max"),
        ("percentile", False, "percentile"),
        ("mse", True, "mse"),
    ],
)
def test_auto_follows_what_was_kept(method, has_histogram, resolved):
    assert resolve_method(AmaxSettings(method=method), has_histogram=has_histogram) == resolved


@each_case("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@each_case("method", ["percentile", "entropy", "mse"])
def test_methods_without_histograms_are_missing(method, symmetric):
    with pytest.raises(MissingStatisticError, match=f"the {method} method needs histograms"):
        decide_parameters(
            statistics_of(OUTLIER, MaxCollector()), AmaxSettings(method=method), UINT8, symmetric=symmetric
        )


def test_unknown_method_of_weights_is_refused_and_auto_is_none_of_them():
    with pytest.raises(UnknownNameError) as caught:
        check_amax_settings(AmaxSettings(weight_method="auto"))
    assert caught.value.message == "unknown amax method of weights 'auto'"
    assert caught.value.hint == "known: max, percentile, entropy, mse"


def test_outlier_on_one_side_costs_the_other_side_nothing():
    parameters = decide_parameters(statistics_of(OUTLIER), MOST, UINT8, symmetric=False)
    # [-1, 2] and not [-2, 2].
    assert float(parameters.scale) == pytest.approx(3 / 255, rel=0.01)
    assert int(parameters.zero_point) == 85


def test_range_not_above_two_to_the_minus_110_counts_as_zero():
    parameters = decide_parameters(statistics_of([2.0**-110, -(2.0**-112)]), MAX, INT8, symmetric=True)
    assert float(parameters.scale) == 1.0

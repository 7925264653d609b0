"""A finished scale stays as it is, and nothing else changes a scale."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ptq_cli
from ptq_cli.amax.choice import Choice, bits_before_point, fixed_point_parameters, step_parameters
from ptq_cli.amax.finish import BiasNeed, ScaleRules, finish_scale, finish_tied, finish_weight
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, INT8, INT8_NARROW, UINT8, NumberFormat, PerAxis
from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule
from ptq_cli.quantizers.fixed_point_integers import fixed_point
from ptq_cli.quantizers.step import step_quantize
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
        "analysis/better_methods.py",
    }
    package = Path(ptq_cli.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace"
        if "scale" in {item.arg for item in node.keywords}
    }
    assert found - others == {"amax/finish.py"}


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

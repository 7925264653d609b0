"""A finished scale stays as it is, and nothing else changes a scale."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptq_cli
from ptq_cli.amax.finish import BiasNeed, ScaleRules, finish_scale, finish_tied, finish_weight
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN, INT8_NARROW, NumberFormat, PerAxis
from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule

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
        "recovery/quantized_layer.py",
        "evaluation/analysis/analyzed_layers.py",
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

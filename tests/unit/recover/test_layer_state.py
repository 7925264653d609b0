"""A layer as matrices, and constants that are decided from matrices."""

from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.amax.decide import LARGEST_BIAS
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ExportSettings, WeightSettings
from ptq_cli.recover.layer_state import BIAS_ROOM, code_grid, decided_again, layer_state
from ptq_cli.recover.quantized_layer import quantized_layers
from tests.unit.plan.graphs import build
from tests.unit.recover.decided import STEP, decided

TEXT = "(float[n, 6] x) => (float[n, 4] y) <float[6, 4] w, float[4] b> { [fc] y = Gemm (x, w, b) }"
RECIPE = Recipe(weights=WeightSettings(bits=4), export=ExportSettings(prefer="size"))


def test_the_weight_lies_within_half_a_step_of_its_codes() -> None:
    model = build(TEXT)
    made = decided(model, RECIPE)
    layers, refused = quantized_layers(model, made)
    assert (list(layers), refused) == (["fc"], {})
    state = layer_state(model, made.parameters, layers["fc"])
    weights = state.codes.weights(layers["fc"].geometry.block)
    assert (state.weight.shape, state.shape, state.part(0)) == ((4, 6), (6, 4), slice(0, 4))
    assert (np.abs(state.weight - weights) <= state.codes.scales / 2 * (1 + 1e-6)).all()
    assert state.bias == pytest.approx(
        model.graph.initializers["b"].const_value.numpy(), abs=0.5 * STEP * float(state.codes.scales.max())
    )


def test_the_same_codes_change_nothing_and_others_do() -> None:
    model = build(TEXT)
    made = decided(model, RECIPE)
    layer = quantized_layers(model, made)[0]["fc"]
    state = layer_state(model, made.parameters, layer)
    same = decided_again(made.parameters, layer, state.codes, None, STEP)
    assert not same.differs(made.parameters, model)
    integers = -state.codes.integers
    other = decided_again(made.parameters, layer, replace(state.codes, integers=integers), None, STEP)
    assert other.differs(made.parameters, model)
    found = layer_state(model, made.parameters.changed(other), layer)
    assert np.array_equal(found.codes.integers, integers)


def test_scales_leave_room_for_a_bias() -> None:
    model = build(TEXT)
    made = decided(model, RECIPE)
    layer = quantized_layers(model, made)[0]["fc"]
    state = layer_state(model, made.parameters, layer)
    grid = code_grid(layer, state, slice(None), STEP, np.full(4, 1e9))
    assert (grid.lowest, grid.highest, grid.free) == (-7, 7, True)
    assert grid.least == pytest.approx(BIAS_ROOM * 1e9 / (STEP * LARGEST_BIAS))

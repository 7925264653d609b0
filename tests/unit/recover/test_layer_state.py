"""A layer as matrices, and constants that are decided from matrices.

The constants of one layer, from rows of what it reads and should make.
"""

from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.amax.decide import LARGEST_BIAS
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections import ActivationSettings, ExportSettings, WeightSettings
from ptq_cli.recover.block_layer import SharedReads, solve_blocks
from ptq_cli.recover.layer_geometry import NO_ROWS, NOT_FINITE, LayerData, LayerRows
from ptq_cli.recover.layer_state import (
    BIAS_ROOM,
    SolvedLayer,
    code_grid,
    decided_again,
    layer_state,
    solve_layer,
)
from ptq_cli.recover.quantized_layer import QuantizedLayer, quantized_layers
from tests.unit.plan.graphs import build
from tests.unit.recover.decided import STEP, ZERO, decided

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


SOLVE_TEXT = "(float[n, 32] x) => (float[n, 4] y) <float[32, 4] w> { [fc] y = MatMul (x, w) }"
EVERYWHERE = ExportSettings(prefer="size")
BYTES = Recipe(weights=WeightSettings(bits=4), export=EVERYWHERE)
BLOCKS = Recipe(
    weights=WeightSettings(bits=4, block_size=16),
    activations=ActivationSettings(mode="float"),
    export=EVERYWHERE,
)
WEIGHT = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)


def correlated(rows: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 32)) + 2 * random.standard_normal((rows, 1))
    return (np.clip(np.rint(x / STEP) + ZERO, 0, 255)).astype(np.uint8)


def data_of(layer: QuantizedLayer, read: np.ndarray, made: np.ndarray) -> LayerData:
    learn, decide = (LayerRows(layer.geometry, wanted=10**6, samples=1) for _ in range(2))
    half = len(read) * 3 // 4
    learn.add(0, read[:half, None], made[:half, None], first=0)
    decide.add(0, read[half:, None], made[half:, None], first=0)
    return LayerData(learn=learn, decide=decide)


def missed(model, made, layer, solved, x: np.ndarray) -> tuple[float, float]:
    """Squares of the error on rows before and after."""
    found = []
    for parameters in (made.parameters, made.parameters.changed(solved.decided)):
        state = layer_state(model, parameters, layer)
        lost = x @ (state.codes.weights(layer.geometry.block) - state.weight).T
        found.append(float(np.square(lost).sum()))
    return found[0], found[1]


def test_a_layer_that_reads_integers_loses_less_on_other_rows() -> None:
    model = build(SOLVE_TEXT, constants={"w": WEIGHT})
    made = decided(model, BYTES)
    layer = quantized_layers(model, made)[0]["fc"]
    assert not layer.is_by_blocks
    read = correlated(600, 0)
    x = (read.astype(np.float64) - ZERO) * STEP
    solved = solve_layer(model, made.parameters, layer, data_of(layer, read, x @ WEIGHT), threads=2)
    assert isinstance(solved, SolvedLayer)
    assert solved.changed and not solved.damped and solved.after < solved.before / 3
    others = (correlated(400, 1).astype(np.float64) - ZERO) * STEP
    before, after = missed(model, made, layer, solved, others)
    assert after < before / 3


def test_a_layer_of_blocks_loses_less_on_other_rows() -> None:
    model = build(SOLVE_TEXT, constants={"w": WEIGHT})
    made = decided(model, BLOCKS)
    layer = quantized_layers(model, made)[0]["fc"]
    assert layer.is_by_blocks
    x = ((correlated(600, 0).astype(np.float32)) - ZERO) * np.float32(STEP)
    shared = SharedReads()
    solved = solve_blocks(model, made.parameters, layer, data_of(layer, x, x @ WEIGHT), shared, threads=1)
    assert isinstance(solved, SolvedLayer)
    assert solved.changed and not solved.damped and solved.after < solved.before / 2
    assert shared.tensor == "x"
    before, after = missed(model, made, layer, solved, (correlated(400, 1).astype(np.float64) - ZERO) * STEP)
    assert after < before / 2


def test_rows_that_say_nothing_leave_a_layer_as_it_is() -> None:
    model = build(SOLVE_TEXT, constants={"w": WEIGHT})
    made = decided(model, BYTES)
    layer = quantized_layers(model, made)[0]["fc"]
    none = LayerRows(layer.geometry, wanted=1, samples=1)
    assert (
        solve_layer(model, made.parameters, layer, LayerData(learn=none, decide=none), threads=1) == NO_ROWS
    )
    read = correlated(8, 0)
    bad = np.full((8, 4), np.nan, np.float32)
    assert solve_layer(model, made.parameters, layer, data_of(layer, read, bad), threads=1) == NOT_FINITE
    floats = replace(layer, parameters=None)
    x = read.astype(np.float32)
    found = solve_layer(model, made.parameters, floats, data_of(floats, x, x @ WEIGHT), threads=1)
    assert isinstance(found, SolvedLayer) and found.damped

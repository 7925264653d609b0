"""A model with one layer changed, beside one that is written by hand."""

import numpy as np
import pytest

from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.read.constant_values import constant_values
from tests.unit.plan.graphs import build, run, sample
from tests.unit.qdq.twins import CHAIN, RESIDUAL, Twins, make_twins

DENSE = """(float[n, 6] x) => (float[n, 4] y) <float[6, 5] w1, float[5, 7] w2, float[7, 4] w3> {
    [a] h1 = MatMul (x, w1)
    [b] h2 = MatMul (h1, w2)
    [c] y = MatMul (h2, w3)
}"""
WEIGHTS = {"a": ("x", "w1"), "b": ("h1", "w2"), "c": ("h2", "w3")}


def by_hand(twins: Twins, x: Array, quantized: set[str]) -> Array:
    """The output with some layers quantized: what each reads and gives, and its weight, as the file says."""
    constants = {item.tensor: constant_values(twins.graphs, item) for item in twins.graphs.constants}
    value = x
    before = ""
    for layer, (tensor, weight) in WEIGHTS.items():
        found = constants[weight]
        if {layer, before} & quantized:
            value = fake_quantize(value, twins.graphs.pairs[tensor].parameters)
        value = value @ (found.values if layer in quantized else found.floats)
        before = layer
    return value


@pytest.mark.parametrize("layer", WEIGHTS)
def test_only_one_layer_quantized(layer: str) -> None:
    twins = make_twins(DENSE)
    inputs = sample(build(DENSE), seed=5)
    base = twins.staged.run(inputs, quantized=False)
    found = twins.staged.changed(layer, base, quantized=True)
    np.testing.assert_allclose(found, by_hand(twins, inputs["x"], {layer}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", WEIGHTS)
def test_only_one_layer_left_float(layer: str) -> None:
    twins = make_twins(DENSE)
    inputs = sample(build(DENSE), seed=5)
    base = twins.staged.run(inputs, quantized=True)
    found = twins.staged.changed(layer, base, quantized=False)
    expected = by_hand(twins, inputs["x"], set(WEIGHTS) - {layer})
    steps = np.abs(found - expected) / float(np.abs(expected).max())
    assert np.median(steps) < 1e-5, "but for a value that rounds to the other side"
    assert steps.max() < 0.02


def test_only_what_is_behind_a_layer_runs_again() -> None:
    staged = make_twins(CHAIN).staged
    assert staged.behind("last") == (6,)
    assert staged.behind("third") == (2, 3, 4, 5, 6)
    assert staged.behind("first") == (0, 1, 2, 3, 4, 5, 6)


def test_a_layer_beside_the_output_runs_alone() -> None:
    text = """(float[n, 8] x) => (float[n, 4] y, float[n, 4] z) <float[8, 4] w1, float[8, 4] w2> {
        [judged] y = MatMul (x, w1)
        [other] z = MatMul (x, w2)
    }"""
    twins = make_twins(text)
    inputs = sample(build(text))
    base = twins.staged.run(inputs, quantized=False)
    assert twins.staged.behind("other") == (twins.staged.layers["other"],)
    assert np.array_equal(
        twins.staged.changed("other", base, quantized=True), run(twins.graphs.float_model, inputs)[0]
    )


@pytest.mark.parametrize("text", [CHAIN, RESIDUAL], ids=["chain", "residual"])
def test_all_variants_leave_what_they_start_from_as_it_was(text: str) -> None:
    twins = make_twins(text)
    inputs = sample(build(text), seed=1)
    for form in (True, False):
        base = twins.staged.run(inputs, quantized=not form)
        before = {name: held.floats.copy() for name, held in base.items() if held.floats is not None}
        first = {layer: twins.staged.changed(layer, base, quantized=form) for layer in twins.staged.layers}
        again = {layer: twins.staged.changed(layer, base, quantized=form) for layer in twins.staged.layers}
        assert all(np.array_equal(first[name], again[name]) for name in first)
        assert all(np.array_equal(base[name].floats, array) for name, array in before.items())


def test_a_tensor_is_quantized_as_the_file_says() -> None:
    twins = make_twins(DENSE)
    held = twins.staged.run(sample(build(DENSE)), quantized=False)["h1"]
    integers = twins.staged.integers("h1", held)
    assert integers.dtype == np.uint8
    assert held.nbytes == integers.size * 4

"""Differences of outputs: in steps, in their own unit, and where numbers are none."""

import math

import numpy as np
import onnx
import pytest

from ptq_cli.evaluation.compare_forms import OutputSums, compare_optimized


def difference(written, optimized, scale=None):
    sums = OutputSums()
    sums.add(np.array(written, np.float32), np.array(optimized, np.float32))
    return sums.difference("y", scale)


def test_steps_are_those_of_the_grid():
    found = difference([0.0, 1.0, 2.0], [0.0, 1.5, 2.0], scale=0.25)
    assert (found.absolute, found.steps, found.on_grid) == (0.5, 2.0, True)
    assert found.sqnr_db == pytest.approx(10 * math.log10(5 / 0.25))


def test_without_a_grid_steps_are_of_8_bits_over_the_range():
    found = difference([0.0, 255.0], [0.0, 252.0])
    assert (found.step, found.steps, found.on_grid) == (1.0, 3.0, False)


def test_the_same_numbers_have_no_difference_whatever_they_are():
    found = difference([math.nan, math.inf, -math.inf, 0.0], [math.nan, math.inf, -math.inf, 0.0])
    assert (found.absolute, found.steps, found.sqnr_db) == (0.0, 0.0, math.inf)


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_a_number_that_is_none_on_one_side_is_an_infinite_difference(other):
    found = difference([1.0, 2.0], [1.0, other])
    assert found.absolute == math.inf
    assert found.sqnr_db == -math.inf


def test_another_shape_is_an_infinite_difference():
    found = difference([[1.0], [2.0]], [[1.0, 1.0], [2.0, 2.0]])  # They would broadcast.
    assert (found.absolute, found.steps, found.sqnr_db) == (math.inf, math.inf, -math.inf)


def test_one_number_without_axes_is_compared():
    assert difference(1.0, 3.0, scale=1.0).steps == 2.0


def test_nothing_to_compare_is_left_out():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y, int64[M] i)
        { y = Relu(x) i = ArgMax<axis=0, keepdims=1>(x) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    found, samples = compare_optimized(model, [{"x": np.ones(3, np.float32)}] * 2, {}, threads=1)
    assert ([item.output for item in found], samples) == (["y"], 6)

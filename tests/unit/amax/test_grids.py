import numpy as np
import pytest
import torch

from ptq_cli.amax.choice import Choice, bits_before_point, fixed_point_parameters, step_parameters
from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.formats import INT8, UINT8
from ptq_cli.quantizers.fixed_point_integers import fixed_point
from ptq_cli.quantizers.step import step_quantize
from tests.each_case import each_case

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

import pytest
import torch

from ptq_cli.core.errors import QuantizerValueError, UnsupportedFormatError
from ptq_cli.quantizers.scaled.tensor_quantizer import scaled_e4m3

# Every byte but the two NaN, 0x7f and 0xff.
VALUES = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
FINITE = VALUES[torch.isfinite(VALUES)].unique()


def test_every_value_of_the_format_stays():
    assert torch.equal(scaled_e4m3(FINITE), FINITE)


def test_others_go_to_the_nearest_with_ties_to_the_even_mantissa():
    middle = (FINITE[1:] + FINITE[:-1]) / 2
    found = scaled_e4m3(middle)
    even = torch.minimum((found - FINITE[1:]).abs(), (found - FINITE[:-1]).abs()) == 0
    mantissa = found.to(torch.float8_e4m3fn).view(torch.uint8) & 1
    assert bool(even.all()) and not bool(mantissa.any())


@pytest.mark.parametrize("amax", [1.0, 0.37, 1000.0])
def test_amax_becomes_the_largest_value(amax):
    x = torch.linspace(-2 * amax, 2 * amax, 999)
    found = scaled_e4m3(x, torch.tensor(amax))
    assert float(found.max()) == pytest.approx(amax)
    relative = ((found - x) / x).abs()[(x.abs() <= amax) & (x.abs() > amax * 2**-13)]
    assert float(relative.max()) <= 2**-4 * 1.001


def test_what_is_not_there():
    with pytest.raises(UnsupportedFormatError, match="5 bits of exponent and 2 of mantissa") as caught:
        scaled_e4m3(torch.ones(1), None, 5, 2)
    assert isinstance(caught.value, NotImplementedError)
    with pytest.raises(QuantizerValueError, match="amax must be finite and not negative"):
        scaled_e4m3(torch.ones(1), torch.tensor(-1.0))

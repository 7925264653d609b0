import math

import pytest
import torch

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.quantizers.step import stochastic_round
from tests.each_case import each_case

DRAWS = 20_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@each_case("precision", [0.1, 0.5, 1.0, 3.0])
@each_case("value", [-1.37, -0.5, 0.0, 0.01, 0.26, 2.999])
def test_expectation_is_the_value(value, precision):
    found = stochastic_round(torch.full((DRAWS,), value), precision, generator=generator())
    steps = found / precision
    assert torch.allclose(steps, torch.round(steps), atol=1e-4)
    assert float((found - value).abs().max()) < precision
    chance = value / precision - math.floor(value / precision)
    deviation = precision * math.sqrt(chance * (1 - chance) / DRAWS)
    assert float(found.double().mean()) == pytest.approx(value, abs=5 * deviation + 1e-6)


def test_multiples_and_what_is_no_number_stay():
    x = torch.tensor([0.0, 1.5, -2.0, float("inf"), -float("inf")])
    assert stochastic_round(x, 0.5, generator=generator()).tolist() == x.tolist()
    assert torch.isnan(stochastic_round(torch.tensor([float("nan")]), generator=generator())).all()


def test_the_generator_decides_and_the_global_one_is_left_alone():
    x = torch.linspace(0, 5, 200)
    before = torch.get_rng_state()
    first, again, other = (stochastic_round(x, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan")])
def test_precision_that_is_none(precision):
    with pytest.raises(QuantizerValueError, match="the precision must be positive"):
        stochastic_round(torch.ones(1), precision)

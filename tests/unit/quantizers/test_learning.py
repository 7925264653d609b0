import itertools

import numpy as np
import pytest
import torch

from ptq_cli.core.errors import AxisError, QuantizerShapeError, QuantizerValueError, UsageError
from ptq_cli.quantizers.assign import hard_assign, quantize_to_centers
from ptq_cli.quantizers.learning import learn_centers
from tests.each_case import each_case
from tests.unit.quantizers.seeded import seeded


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cost(x, centers):
    return float((quantize_to_centers(x.double(), centers.double()) - x).square().sum())


def best_cost(x, count):
    """The least cost of all ways to cut the sorted values into runs."""
    values = np.sort(x.double().numpy())
    cuts = itertools.combinations(range(1, values.size), count - 1)
    return min(
        sum(((run - run.mean()) ** 2).sum() for run in np.split(values, np.array(cut, int))) for cut in cuts
    )


@each_case("count", [1, 2, 3, 4])
@each_case("seed", range(4))
def test_small_tensors_get_nearly_the_best_centers(count, seed):
    x = seeded(14, seed=seed)
    centers = learn_centers(x, count, generator(), restarts=20)
    assert cost(x, centers) <= best_cost(x, count) * 1.0001 + 1e-10


def test_each_center_is_the_mean_of_what_is_nearest_to_it():
    x = seeded(5000) ** 3 + 40
    centers = learn_centers(x, 16, generator())
    index = hard_assign(x, centers)
    for number, center in enumerate(centers):
        torch.testing.assert_close(center, x[index == number].double().mean().float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(centers, centers.sort().values)


def test_gaussian_weights_get_lloyd_and_max_quantizer():
    # Max 1960, "Quantizing for minimum distortion", table I: mean squared error for 4, 8 and 16 levels.
    x = seeded(200_000)
    for count, error in ((4, 0.1175), (8, 0.03454), (16, 0.009497)):
        centers = learn_centers(x, count, generator())
        assert cost(x, centers) / x.numel() == pytest.approx(error, rel=0.03)


def test_first_centers_are_drawn_by_squared_distance():
    # One value far off holds nearly all of the squared distance: k-means++ draws it, plain chance rarely.
    x = torch.cat([seeded(1000) * 0.01, torch.tensor([100.0])])
    for seed in range(10):
        assert 100.0 in learn_centers(x, 2, generator(seed), restarts=1).tolist()


def test_same_generator_same_centers_and_no_global_seed():
    x = seeded(3000)
    state = torch.get_rng_state()
    first = learn_centers(x, 8, generator(5), restarts=1)
    assert torch.equal(first, learn_centers(x, 8, generator(5), restarts=1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(learn_centers(x.flip(0), 8, generator(5), restarts=1), first)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_by_axis_is_each_slice_by_itself(axis):
    x = seeded(3, 40, 2)
    centers = learn_centers(x, 4, generator(), axis=axis)
    shared = generator()
    expected = [learn_centers(row, 4, shared) for row in x.movedim(axis, 0)]
    assert torch.equal(centers, torch.stack(expected))


@each_case(
    "x, options, error, text",
    [
        (torch.zeros(3), {"count": 0}, QuantizerValueError, "0 centers"),
        (torch.zeros(3), {"count": 257}, QuantizerValueError, "257 centers"),
        (torch.zeros(3), {"restarts": 0}, QuantizerValueError, "restarts must be positive"),
        (torch.zeros(0), {}, QuantizerShapeError, "without values"),
        (torch.tensor([1.0, float("nan")]), {}, QuantizerValueError, "NaN or infinities"),
        (torch.tensor([1.0, float("inf")]), {}, QuantizerValueError, "NaN or infinities"),
        (torch.zeros(3), {"axis": 1}, AxisError, "axis 1"),
        (torch.tensor([1]), {}, UsageError, "float tensor"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_refused(x, options, error, text):
    with pytest.raises(error, match=text):
        learn_centers(x, **{"count": 2, "generator": generator(), **options})

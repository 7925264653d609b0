"""What is drawn of a quantizer is what the quantizer computes."""

import numpy as np
import torch

from ptq_cli.pipeline.views.staircase import staircase_of
from ptq_cli.quantizers.fixed_point_integers import fixed_point
from ptq_cli.quantizers.scaled.scaled_quantize import fake_quantize
from ptq_cli.recipe.quantizer_families import FAMILIES
from tests.each_case import each_case

LEVELS = {
    "scaled": ({"bits": 3}, 7),
    "scaled with the most negative integer": ({"bits": 3, "narrow_range": False}, 8),
    "scaled unsigned": ({"bits": 3, "unsigned": True}, 8),
    "scaled, 16 bits": ({"bits": 16}, 65535),
    "fixed_point": ({"bits": 3}, 8),
    "fixed_point symmetric": ({"bits": 3, "symmetric": True}, 7),
    "fixed_point binary": ({"bits": 1}, 2),
    "fixed_point without a sign": ({"bits": 3, "keep_negative": False}, 8),
    "dorefa": ({"bits": 2}, 4),
    "step": ({"step": 3.0}, 9),
    "centers": ({"centers": 5}, 5),
}


@each_case("name", LEVELS)
def test_it_has_the_levels_that_the_family_has(name: str) -> None:
    settings, count = LEVELS[name]
    stairs = staircase_of(FAMILIES[name.replace(",", "").split()[0]], settings)

    assert len(stairs.levels) == count
    assert np.all(np.diff(stairs.levels) > 0)
    assert stairs.curve.low <= stairs.levels[0] and stairs.levels[-1] <= stairs.curve.high


def test_the_values_are_those_of_the_library() -> None:
    line = torch.linspace(-2, 2, 101)
    scaled = staircase_of(FAMILIES["scaled"], {"bits": 5, "amax": 1.3})
    fixed = staircase_of(FAMILIES["fixed_point"], {"bits": 5, "integer": 1, "alpha": 0.5})

    assert np.array_equal(scaled.curve.at(line.numpy())[0], fake_quantize(line, 1.3, bits=5).numpy())
    assert np.array_equal(fixed.curve.at(line.numpy())[0], fixed_point(line, 5, 1, alpha=0.5).numpy())


def test_dorefa_reaches_both_ends_and_not_0() -> None:
    stairs = staircase_of(FAMILIES["dorefa"], {"bits": 2, "amax": 3.0})
    assert np.allclose(stairs.levels, [-3, -1, 1, 3])


@each_case("name, beyond", [("scaled", 0), ("dorefa", 0), ("fixed_point", 1), ("step", 1)])
def test_the_gradient_is_that_of_autograd(name: str, beyond: int) -> None:
    _, gradient = staircase_of(FAMILIES[name], {}).curve.at(np.array([-9.0, -0.3, 0.3, 9.0]))
    assert np.allclose(gradient, [beyond, 1, 1, beyond])


def test_centers_are_those_of_the_seed() -> None:
    one, same, other = (staircase_of(FAMILIES["centers"], {"seed": seed}).levels for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)

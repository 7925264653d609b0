"""Weights that keep the condition on pairs give exact sums with each kernel of ONNX Runtime, everywhere."""

from collections.abc import Iterator

import numpy as np
import pytest

from ptq_cli.core.pair_sums import LARGEST_SUM, PairRule, unsafe_pairs, within_pairs
from ptq_cli.runtime.products import is_signed_exact
from tests.contracts.byte_forms import EXACT, SATURATING, Form, is_exact
from tests.each_case import each_case

EXTREMES = np.int8([-127, -126, -65, -64, -1, 0, 1, 63, 64, 65, 126, 127])


def named(form: Form) -> str:
    return form.name


def activations(form: Form) -> Iterator[np.ndarray]:
    yield np.full(form.activations, 255)
    random = np.random.default_rng(0)
    for _ in range(2):
        yield random.choice([0, 255], form.activations)


def weights(form: Form) -> Iterator[np.ndarray]:
    """Yield weights that add up to as much as they may."""
    random = np.random.default_rng(1)
    rule = PairRule(LARGEST_SUM, form.orders)
    yield within_pairs(np.full(form.weight, 127, np.int8), rule)
    yield np.full(form.weight, 64, np.int8)
    yield np.full(form.weight, -64, np.int8)
    for _ in range(3):
        yield within_pairs(random.choice(EXTREMES, form.weight), rule)
        yield within_pairs(random.integers(1, 128, form.weight, dtype=np.int8), rule)


@each_case("form", SATURATING, ids=named)
def test_no_sum_of_safe_weights_saturates(form: Form) -> None:
    for weight in weights(form):
        assert not unsafe_pairs(
            weight, PairRule(LARGEST_SUM, form.orders), 0 if form.weight[0] > 1 else -1
        ).pairs
        for values in activations(form):
            assert is_exact(form.make(weight, values))


@each_case("form", EXACT, ids=named)
def test_kernels_without_pairs_are_exact_with_any_weight(form: Form) -> None:
    for values in activations(form):
        assert is_exact(form.make(np.full(form.weight, 127, np.int8), values))
        assert is_exact(form.make(np.full(form.weight, -127, np.int8), values))


@pytest.mark.parametrize("form", SATURATING, ids=named)
def test_the_largest_weights_saturate_where_the_processor_does(form: Form) -> None:
    if is_signed_exact():
        pytest.skip("this processor adds products of bytes in 32 bits")
    assert not is_exact(form.make(np.full(form.weight, 127, np.int8), next(activations(form))))

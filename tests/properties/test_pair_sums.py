"""No quantizer and no search exceeds what two neighbors may add up to, and sums are preserved under it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.amax.decide import BiasNeed
from ptq_cli.core.arithmetic import quantize
from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.core.pair_sums import (
    ACROSS,
    LARGEST_SUM,
    RESTARTED,
    PairRule,
    conv_orders,
    exceeds_pairs,
    mates_along,
)
from ptq_cli.placement.weight_families import weight_quantizer, weight_site
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.site_parameters import decide_weight
from ptq_cli.qdq.write.weight_quantizer import ScaledQuantizer, in_memory
from ptq_cli.recipe.quantizer_families import (
    DorefaWeights,
    FixedPointWeights,
    ScaledWeights,
    StepWeights,
    WeightFamily,
)
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.recover.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recover.least_squares import centered, fit_least_squares, quadratic_forms
from ptq_cli.recover.second_moments import second_moments
from tests.day import examples

FAMILIES: dict[str, WeightFamily] = {
    "scaled": ScaledWeights(),
    "scaled, one scale": ScaledWeights(granularity="tensor"),
    "fixed point": FixedPointWeights(),
    "fixed point, alpha": FixedPointWeights(alpha="auto_po2"),
    "fixed point, integer": FixedPointWeights(integer=0),
    "step": StepWeights(),
    "step, given": StepWeights(step=0.01),
    "dorefa, 7 bits": DorefaWeights(bits=7),
}
OF_PYTORCH = ("fixed point, alpha", "dorefa, 7 bits")


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Heavy tails, equal neighbors at the end of the range, and a channel of zeros."""
    random = np.random.default_rng(seed)
    weight = random.standard_t(3, shape).astype(np.float32)
    weight[0, ...] = np.abs(weight[0, ...]).max()
    weight[1, ...] = 0.0
    return weight


@pytest.mark.parametrize("name", FAMILIES)
@examples(15)
@given(seed=st.integers(0, 2**16), channels=st.integers(1, 7), size=st.sampled_from([1, 2, 3]))
def test_no_pair_exceeds_its_sum_whatever_quantizes_it(
    name: str, seed: int, channels: int, size: int
) -> None:
    if name in OF_PYTORCH:
        pytest.importorskip("torch")
    weight = weights(seed, (4, channels, size, size))
    site = WeightSite(
        tensor="w",
        node="conv",
        input_index=1,
        format=INT8_NARROW,
        axis=0,
        preserves_sums=True,
        pairs=PairRule(LARGEST_SUM, conv_orders(weight.shape, 1)),
    )
    family = FAMILIES[name]
    made = weight_site(site, family, weight.shape)
    # A bias that widens one channel more than its pairs do.
    bias = BiasNeed(np.float32([1e6, 0, 0, 0]), 0.01)
    for method in ("max", "mse"):
        quantizer = weight_quantizer(family, AmaxSettings(weight_method=method), packed=False)
        decided = decide_weight(weight, {made: quantizer}, {made: bias}, in_memory)
        (found,) = decided.values()
        assert made.pairs is not None and not exceeds_pairs(found.stored.values(), made.pairs)


@examples(40)
@given(seed=st.integers(0, 2**16), channels=st.integers(1, 9), size=st.sampled_from([1, 3, 5]))
def test_errors_of_a_channel_add_up_to_less_than_half_a_step_where_pairs_leave_room(
    seed: int, channels: int, size: int
) -> None:
    weight = np.random.default_rng(seed).standard_normal((6, channels, size, size)).astype(np.float32)
    site = WeightSite(tensor="w", node="conv", input_index=1, format=INT8_NARROW, axis=0, preserves_sums=True)
    quantizer = ScaledQuantizer(AmaxSettings(weight_method="max"))
    parameters = quantizer.choose(weight, site).parameters
    assert parameters is not None
    scale = parameters.scale.reshape(6, 1, 1, 1).astype(np.float64)
    nearest = quantize(weight, parameters)
    found = quantizer.store(weight, site, parameters).array()
    before, after = ((weight / scale - item).sum(axis=(1, 2, 3)) for item in (nearest, found))
    assert (np.abs(after) <= np.maximum(0.51, np.abs(before))).all()
    if channels * size > 3:  # Of a few values, all may lie on the other side.
        assert (np.abs(after) <= 0.51).mean() >= 0.8
    assert (np.abs(found.astype(int) - nearest) <= 1).all()


@examples(25)
@given(seed=st.integers(0, 2**16), inputs=st.integers(2, 14))
def test_a_search_keeps_the_pairs_and_is_no_worse_than_what_it_is_given(seed: int, inputs: int) -> None:
    random = np.random.default_rng(seed)
    weight = np.abs(random.standard_normal((5, inputs))) + 0.5
    rule = PairRule(LARGEST_SUM, ((1,),))
    read = random.integers(0, 256, (400, inputs)).astype(np.float64)
    sums = second_moments(read, np.rint(read @ weight.T * 100))
    objective = fit_least_squares(
        centered(sums, input_step=1.0, target_step=np.full(5, 0.01), has_bias=False), weight
    )
    scales = weight.max(axis=1, keepdims=True) / 64
    nearest = Codes(integers=np.rint(weight / scales), scales=scales)
    grid = CodeGrid(
        lowest=-127,
        highest=127,
        block=np.zeros(inputs, np.int64),
        least=np.zeros(5),
        pair_partners=mates_along(rule, (1, inputs)),
        most=float(LARGEST_SUM),
    )
    found, *_ = search_codes(objective, grid, nearest)
    assert not exceeds_pairs(found.integers, rule)
    block = grid.block
    before, after = (
        quadratic_forms(objective.curvature, objective.best - item.weights(block))
        for item in (nearest, found)
    )
    assert (after <= before * (1 + 1e-9) + 1e-12).all()


@examples(60)
@given(
    seed=st.integers(0, 2**16),
    channels=st.integers(1, 6),
    size=st.sampled_from([1, 2, 3]),
    kinds=st.sampled_from([(ACROSS,), (RESTARTED,), (ACROSS, RESTARTED)]),
)
def test_the_orders_of_a_conv_are_those_of_the_kernels_that_are_asked_for(
    seed: int, channels: int, size: int, kinds: tuple[str, ...]
) -> None:
    weight = np.random.default_rng(seed).integers(-127, 128, (2, channels, size, size), dtype=np.int8)
    rule = PairRule(LARGEST_SUM, conv_orders(weight.shape, 1, kinds))
    at_positions = weight.transpose(0, 2, 3, 1).reshape(2, -1, channels).astype(int)
    rows = {ACROSS: at_positions.reshape(2, -1), RESTARTED: at_positions.reshape(-1, channels)}
    sums = [
        one + other
        for kind in kinds
        for row in rows[kind]
        for one, other in zip(row[0::2], row[1::2], strict=False)
        if one * other > 0
    ]
    assert exceeds_pairs(weight, rule) == any(abs(item) > LARGEST_SUM for item in sums)

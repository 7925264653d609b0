"""How weights and biases use their integers."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.analysis.tensor_rows import overflowing, use_of
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.read.constant_values import ConstantValues
from ptq_cli.qdq.read.pair_grids import PairGrid


def stored(floats, scale, qmax=127, dtype="int8", axis=None):
    """A symmetric weight as a file holds it."""
    floats, scale = np.asarray(floats, np.float32), np.asarray(scale, np.float32)
    shape = [1] * floats.ndim
    if axis is not None:
        shape[axis] = -1
    spread = scale.reshape(shape if axis is not None else ())
    integers = np.clip(np.rint(floats / spread), -qmax, qmax).astype(np.int32)
    values = (integers * spread).astype(np.float32)
    return ConstantValues(
        floats=floats, values=values, dtype=dtype, integers=integers, grid=grid(scale, axis)
    )


def grid(scale: Array, axis: int | None, block_size: int = 0) -> PairGrid:
    return PairGrid(
        scale=scale,
        zero_point=np.zeros(scale.shape, np.int64),
        dtype=ir.DataType.INT8,
        axis=1 if axis is None else axis,
        block_size=block_size,
    )


def test_a_weight_by_hand() -> None:
    use = use_of(stored([[1.0, -0.5], [0.25, 2.0]], 2 / 127), 0)
    integers = np.rint(np.array([1.0, -0.5, 0.25, 2.0]) / (2 / 127))
    noise = np.sum((integers * 2 / 127 - [1.0, -0.5, 0.25, 2.0]) ** 2)
    assert use.sqnr_db == pytest.approx(10 * np.log10((1 + 0.25 + 0.0625 + 4) / noise), rel=1e-5)
    assert (use.low, use.high) == (pytest.approx(-2.0), pytest.approx(2.0))
    assert (use.clipped, use.clip_share, use.levels, use.widened) == (0.0, 0.0, 255, 0.0)
    assert use.imbalance == pytest.approx(2.0 / 1.5)


def test_a_range_that_cuts_values_is_told() -> None:
    use = use_of(stored([[1.0, -0.5, 0.25, 2.0]], 1 / 127), None)
    assert use.clipped == 0.25
    assert use.clip_share > 0.99


def test_few_bits_show_in_the_integers() -> None:
    random = np.random.default_rng(0).standard_normal((4, 50))
    scale = np.abs(random).max(axis=1) / 15
    assert use_of(stored(random, scale, qmax=15, axis=0), None).levels == 31


def test_a_channel_of_its_own_scale_uses_its_range() -> None:
    weight = np.float32([[1, -1, 0.5], [100, -50, 25]])
    use = use_of(stored(weight, [1 / 127, 100 / 127], axis=0), None)
    assert use.imbalance == pytest.approx(100 / 50.5)
    assert use.used == pytest.approx((127 + 127) / 254)


def test_a_widened_scale_is_told() -> None:
    weight = np.float32([[1, -1], [0.001, 0.0005], [0, 0]])
    use = use_of(stored(weight, [1 / 127, 1.0, 1.0], axis=0), None)
    assert use.widened == pytest.approx(1 / 3)


def test_a_bias_overflows_where_it_has_half_of_its_integers() -> None:
    assert overflowing(stored([2.0**20], 2.0**-10, qmax=2**31 - 1, dtype="int32"))
    assert not overflowing(stored([2.0**18], 2.0**-10, qmax=2**31 - 1, dtype="int32"))


def test_values_of_a_table_have_no_range() -> None:
    table = ConstantValues(floats=np.float32([1, 2]), values=np.float32([1, 1.5]), dtype="uint4 in a table")
    use = use_of(table, None)
    assert (use.low, use.high, use.used, use.levels) == (None, None, None, 0)
    assert use.sqnr_db == pytest.approx(10 * np.log10(5 / 0.25))


def test_blocks_of_a_channel_have_their_scales() -> None:
    scale = np.float32([[0.5, 2.0]])
    values = np.float32([[0.5, 1.0, 2.0, 4.0]])
    integers = np.array([[1, 2, 1, 2]], np.int32)
    block = ConstantValues(
        floats=values, values=values, dtype="int4", integers=integers, grid=grid(scale, 1, block_size=2)
    )
    assert block.spread(scale).tolist() == [[0.5, 0.5, 2.0, 2.0]]
    assert use_of(block, None).clipped == 0.0

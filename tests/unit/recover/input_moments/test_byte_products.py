"""Products of bytes are exact with the kernels for signed bytes, and where a processor's kernels saturate."""

import numpy as np
import pytest

from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import UINT8
from ptq_cli.recover import input_moments as byte_products
from ptq_cli.recover.input_moments import MOST_ROWS, ByteRows, InputSums, byte_moments
from ptq_cli.recover.layer_geometry import Window
from ptq_cli.recover.second_moments import second_moments
from ptq_cli.recover.tensor_moments import InputReading, MomentSite, TensorMomentCollector
from ptq_cli.runtime.products import is_signed_exact
from ptq_cli.runtime.tapping.channel_blocks import channel_view


@pytest.mark.parametrize("signed", [True, False])
def test_products_of_the_largest_bytes_are_exact(signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if signed and not is_signed_exact():
        pytest.skip("the kernels for signed bytes saturate on this processor: it has AVX2 and no VNNI")
    monkeypatch.setattr(byte_products, "is_signed_exact", lambda: signed)
    rows = np.random.default_rng(0).integers(0, 256, (500, 3, 20), dtype=np.uint8)
    rows[:, 0, :5], rows[:, 1, 5:9] = 255, 0
    own, exact = ByteRows(rows.swapaxes(0, 1), 7), rows.astype(np.int64) - 7
    assert (
        own.gram(5, 20, 18).tolist() == np.einsum("rgi,rgj->gij", exact[:, :, 5:], exact[..., :18]).tolist()
    )
    assert own.sums().tolist() == exact.sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("dtype", "zero", "reach"), [(np.uint8, 0, 32767), (np.uint8, 255, 5), (np.int8, -3, 9)]
)
@pytest.mark.parametrize(("groups", "size"), [(1, 300), (3, 9)])
def test_bytes_have_the_moments_that_floats_have(
    dtype: type[np.integer], zero: int, reach: int, groups: int, size: int
) -> None:
    random = np.random.default_rng(2)
    kind = np.iinfo(dtype)
    rows = random.integers(kind.min, kind.max + 1, (MOST_ROWS // 2 + 70, groups * size), dtype=dtype)
    made = random.uniform(-reach, reach, (len(rows), groups * 2)).astype(np.float32)
    made[0], made[1] = -reach, reach
    found = byte_moments(rows, zero, made, np.ones(groups * 2), groups)
    inputs, targets = rows.astype(np.float64) - zero, np.rint(made.astype(np.float64))
    for group, own in enumerate(found):
        part = slice(group * size, (group + 1) * size), slice(group * 2, (group + 1) * 2)
        wanted = second_moments(inputs[:, part[0]], targets[:, part[1]])
        assert own.rows == wanted.rows
        for name in ("gram", "cross", "inputs", "targets"):
            assert np.array_equal(getattr(own, name), getattr(wanted, name)), name


def test_more_rows_than_32_bits_hold() -> None:
    sums = InputSums(groups=1, size=1, zero=0)
    sums.add(np.full((2 * MOST_ROWS, 1), 255, np.uint8))
    assert sums.moments().products.tolist() == [[2 * MOST_ROWS * 255**2]]


@pytest.mark.parametrize("each", [3, 40])
def test_blocks_of_channels_have_the_moments_of_the_tensor(each: int) -> None:
    plain = np.random.default_rng(1).normal(2.0, 3.0, (5, 32, 6, 7)).astype(np.float32)
    blocked = np.ascontiguousarray(plain.reshape(5, 2, 16, 6, 7).transpose(0, 1, 3, 4, 2)).reshape(
        plain.shape
    )
    window = Window(kernel=(2, 3), strides=(1, 1), dilations=(1, 1), begins=(1, 1), ends=(0, 1), upper=True)
    grid = QuantParameters(np.float32(0.04).reshape(()), np.int64(90).reshape(()), UINT8)
    reading = InputReading(groups=1, size=192, window=window, each=each)
    found = []
    for array in (plain, channel_view(blocked, 16)):
        collector = TensorMomentCollector(MomentSite(tensor="x", parameters=grid, readings=(reading,)))
        assert collector.update(array)
        found.append(collector.statistics().readings[reading.key])
    assert found[0].rows == 5 * min(each, 42)
    assert np.array_equal(found[0].products, found[1].products)
    assert np.array_equal(found[0].sums, found[1].sums)

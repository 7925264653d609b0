"""Products of bytes are exact with the kernels for signed bytes, and where a processor's kernels saturate."""

import numpy as np
import pytest

from ptq_cli.recover import second_moments as byte_products
from ptq_cli.recover.second_moments import MOST_EXACT_ROWS, ByteRows, byte_moments, second_moments
from ptq_cli.runtime.products import is_signed_exact


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
    rows = random.integers(kind.min, kind.max + 1, (MOST_EXACT_ROWS // 2 + 70, groups * size), dtype=dtype)
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

"""Whether kernels saturate is found by trying them."""

from collections.abc import Iterator

import numpy as np
import pytest

from ptq_cli.runtime import products as byte_sums


@pytest.fixture(autouse=True)
def tried_again() -> Iterator[None]:
    byte_sums.is_signed_exact.cache_clear()
    yield
    byte_sums.is_signed_exact.cache_clear()


def test_kernels_that_saturate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied = byte_sums.multiplied

    def saturating(left, right, left_zero, right_zero):
        found = multiplied(left, right, left_zero, right_zero)
        return np.minimum(found, 32767 * 32) if right.dtype == np.int8 else found

    monkeypatch.setattr(byte_sums, "multiplied", saturating)
    assert not byte_sums.is_signed_exact()

"""Moments of what layers read are exact, and have the same bytes for any split of the samples."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ptq_cli.recovery.input_moments import InputSums

SEEDS = st.integers(0, 2**32 - 1)
CUTS = st.lists(st.integers(0, 12), max_size=4)


@settings(max_examples=40)
@given(
    seed=SEEDS,
    groups=st.integers(1, 3),
    size=st.sampled_from([1, 3, 9]),
    largest=st.sampled_from([1, 255, 65535]),
    cuts=CUTS,
)
def test_sums_are_those_of_python_s_integers(
    seed: int, groups: int, size: int, largest: int, cuts: list[int]
) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, largest + 1, (12, groups * size)).astype(
        np.uint8 if largest <= 255 else np.uint16
    )
    zero = int(random.integers(0, largest + 1))
    sums = InputSums(groups=groups, size=size, zero=zero)
    for a, b in itertools.pairwise([0, *sorted(cuts), 12]):
        sums.add(rows[a:b])
    found = sums.moments()
    values = (rows.astype(object) - zero).reshape(12, groups, size)
    assert (found.rows, found.sums.tolist()) == (12, values.sum(axis=0).tolist())
    for group in range(groups):
        own = values[:, group]
        exact = [[int(sum(own[:, i] * own[:, j])) for j in range(size)] for i in range(size)]
        assert found.gram(group).tolist() == exact

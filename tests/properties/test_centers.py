"""What holds for every tensor and every list of centers."""

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq_cli.quantizers.assign import hard_assign, quantize_to_centers
from ptq_cli.quantizers.center_indices import encode_centers

# Few different values, so that ties and equal centers are common; and any at all.
coarse = st.integers(-8, 8).map(lambda value: value / 4)
fine = st.floats(-(2.0**126), 2.0**126, width=32)
tiny = st.integers(-6, 6).map(lambda value: value * 2.0**-149)
vectors = st.one_of(
    *(hnp.arrays(np.float32, st.integers(1, 30), elements=elements) for elements in (coarse, fine, tiny))
)


def exact_nearest(x, centers):
    """The first of the nearest centers, in exact numbers."""
    distances = [[abs(Fraction(float(value)) - Fraction(float(center))) for center in centers] for value in x]
    return [row.index(min(row)) for row in distances]


@given(x=vectors, centers=vectors)
def test_nearest_center_is_exact_and_ties_go_to_the_lower_index(x, centers):
    assert hard_assign(torch.tensor(x), torch.tensor(centers)).tolist() == exact_nearest(x, centers)


@given(x=vectors, centers=vectors)
def test_quantizing_again_changes_nothing_and_the_codebook_says_the_same(x, centers):
    wide, own = torch.tensor(x), torch.tensor(centers)
    once = quantize_to_centers(wide, own)
    assert torch.equal(quantize_to_centers(once, own), once)
    assert torch.equal(encode_centers(wide, own).values(), once)

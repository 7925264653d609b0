"""What holds for every tensor and every list of centers."""

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptq_cli.quantizers.assign import hard_assign, quantize_to_centers, soft_assign
from ptq_cli.quantizers.center_indices import encode_centers

torch.set_num_threads(1)

# A busy machine makes one slow example of any test; the cases are the same in every run.
steady = settings(deadline=None, derandomize=True)

# Few different values, so that ties and equal centers are common; and any at all.
coarse = st.integers(-8, 8).map(lambda value: value / 4)
fine = st.floats(-(2.0**126), 2.0**126, width=32)
tiny = st.integers(-6, 6).map(lambda value: value * 2.0**-149)
vectors = st.one_of(
    *(hnp.arrays(np.float32, st.integers(1, 30), elements=elements) for elements in (coarse, fine, tiny))
)
temperatures = st.floats(1e-3, 1e3)


def exact_nearest(x, centers):
    """The first of the nearest centers, in exact numbers."""
    distances = [[abs(Fraction(float(value)) - Fraction(float(center))) for center in centers] for value in x]
    return [row.index(min(row)) for row in distances]


@steady
@given(x=vectors, centers=vectors)
def test_nearest_center_is_exact_and_ties_go_to_the_lower_index(x, centers):
    assert hard_assign(torch.tensor(x), torch.tensor(centers)).tolist() == exact_nearest(x, centers)


@steady
@given(x=vectors, centers=vectors, temperature=temperatures)
def test_soft_value_lies_between_the_centers_and_the_gradient_is_not_negative(x, centers, temperature):
    wide = torch.tensor(x).requires_grad_()
    found = soft_assign(wide, torch.tensor(centers), temperature)
    found.sum().backward()
    low, high = float(centers.min()), float(centers.max())
    slack = 4e-6 * max(abs(low), abs(high))
    assert low - slack <= found.min() and found.max() <= high + slack
    assert (wide.grad >= 0).all()
    assert (wide.grad[(wide < low) | (wide > high)] == 0).all()


@steady
@given(x=vectors, centers=vectors, temperature=temperatures, data=st.data())
def test_order_of_the_centers_does_not_matter_but_for_ties(x, centers, temperature, data):
    order = data.draw(st.permutations(range(len(centers))))
    results = []
    for own in (centers, centers[order]):
        wide, learned = torch.tensor(x), torch.tensor(own, requires_grad=True)
        found = soft_assign(wide, learned, temperature)
        found.sum().backward()
        results.append((found.detach(), learned.grad))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1][order], results[1][1])


@steady
@given(x=vectors, centers=vectors)
def test_quantizing_again_changes_nothing_and_the_codebook_says_the_same(x, centers):
    wide, own = torch.tensor(x), torch.tensor(centers)
    once = quantize_to_centers(wide, own)
    assert torch.equal(quantize_to_centers(once, own), once)
    assert torch.equal(encode_centers(wide, own).values(), once)

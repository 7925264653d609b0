"""Bins: where their edges are, how wide they are, and what thinning does."""

import numpy as np

from ptq_cli.collectors.bit_histogram import EMPTY, SIGN, bins_per_octave, from_values, key_to_magnitude, thin
from tests.each_case import each_case


def all_bins(largest):
    """The histogram that holds every bin that a tensor of this maximum can have."""
    bits = np.arange(0, np.float32(largest).view(np.uint32), 1 << 12, dtype=np.uint32)
    values = np.append(bits.view(np.float32)[1:], np.float32(largest))
    return from_values(values)


@each_case("largest", [1.0, 1.9999, 6.0, 255.0, 1e-6, 3.4e38, 2.0**-20])
def test_bin_is_never_wider_than_one_of_2048_linear_bins(largest):
    histogram = all_bins(largest)
    widths = histogram.upper_edges() - histogram.lower_edges()
    assert widths.max() <= np.float32(largest) / 2048


@each_case("largest", [1.0, 1.9999, 6.0, 255.0, 1e-6, 3.4e38])
def test_bins_above_a_256th_of_the_maximum_are_equally_wide(largest):
    histogram = all_bins(largest)
    widths = (histogram.upper_edges() - histogram.lower_edges())[histogram.lower_edges() >= largest / 256]
    assert widths.min() == widths.max() == 2.0 ** np.floor(np.log2(largest)) / 2048


def test_last_edge_is_beyond_float32():
    histogram = from_values([np.finfo(np.float32).max])
    assert histogram.upper_edges().tolist() == [2.0**128]
    assert histogram.lower_edges()[0] < np.finfo(np.float32).max


def test_signs_are_kept_apart_and_edges_are_magnitudes():
    histogram = from_values([1.0, -1.0, -1.0])
    assert histogram.counts.tolist() == [1, 2]
    assert (histogram.keys & SIGN > 0).tolist() == [False, True]
    assert histogram.lower_edges().tolist() == [1.0, 1.0]


def test_resolution_falls_by_a_bit_an_octave_down_to_three():
    octaves = np.arange(140, 127, -1)
    assert bins_per_octave(octaves, 140).tolist() == [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 8, 8, 8, 8]


def test_counts_beyond_32_bits_add_up():
    histogram = thin(np.array([5, 5], np.uint32), np.array([2**40, 2**41]))
    assert histogram.counts.tolist() == [2**40 + 2**41]


def test_definition_leaves_out_zeros_and_what_is_not_finite():
    assert from_values([0.0, -0.0, np.nan, np.inf, -np.inf]) == EMPTY
    assert from_values([]) == EMPTY
    assert EMPTY.top_exponent == 0 and EMPTY.upper_edges().size == 0


def test_histograms_compare_by_content():
    assert from_values([1.0]) == from_values([1.0]) != from_values([2.0])
    assert from_values([1.0]) != "a histogram"


def test_magnitude_of_a_key_is_its_smallest_float():
    assert key_to_magnitude(np.array([0, 1, 127 << 11, 255 << 11], np.uint32)).tolist() == [
        0.0,
        2.0**-137,
        1.0,
        np.inf,
    ]


@each_case(
    "values",
    [[], [0.0], [1.0], [-1.0], [0.0, -1.0], [1e-45, 3e38], [-3e38, 1e-45], [0.1, 0.3, -0.7], [2.0**-149]],
    ids=str,
)
def test_a_histogram_fits_the_range_of_its_values_and_no_other(values):
    found = from_values(np.array(values, np.float32))
    low, high = min(values, default=np.inf), max(values, default=-np.inf)
    assert found.fits(float(np.float32(low)), float(np.float32(high)))
    if values:
        assert not found.fits(low, high + abs(high) + 1e-35)
        assert not found.fits(low - abs(low) - 1e-35, high)

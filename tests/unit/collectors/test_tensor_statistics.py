"""Bins: where their edges are, how wide they are, and what thinning does."""

import numpy as np
import pytest

from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.collectors.tensor_statistics import bins_per_octave, from_values
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


def test_resolution_falls_by_a_bit_an_octave_down_to_three():
    octaves = np.arange(140, 127, -1)
    assert bins_per_octave(octaves, 140).tolist() == [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 8, 8, 8, 8]


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


def statistics(collector, values):
    assert collector.update(np.asarray(values, np.float32))
    return collector.statistics()


def test_statistics_that_were_kept_differently_do_not_merge():
    with pytest.raises(ValueError, match="statistics that were kept differently do not merge"):
        MaxCollector().statistics().merge(HistogramCollector().statistics())


def test_statistics_compare_by_content():
    one, same = (statistics(HistogramCollector(), [1.0, 2.0]) for _ in range(2))
    assert one == same
    assert one != statistics(HistogramCollector(), [1.0, 3.0])
    assert one != statistics(MaxCollector(), [1.0, 2.0])
    assert one != "statistics"

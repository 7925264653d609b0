"""Channels on the terminal: more of them than columns, dead ones, and none that says anything."""

import numpy as np
import pytest

from ptq_cli.amax.decide import decide_channels
from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.core.documents import encode
from ptq_cli.core.formats import UINT8
from ptq_cli.pipeline.channel_view import ChannelsView, imbalance_of
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.report.text.numbers import format_share
from ptq_cli.shown.channel_tables import channel_lines, format_clipped
from tests.each_case import each_case


def view_of(values):
    collector = ChannelCollector(1)
    collector.update(np.asarray(values, np.float32))
    channels = collector.statistics()
    return ChannelsView(
        channels, "max", decide_channels(channels, AmaxSettings(method="max"), UINT8, symmetric=False)
    )


def test_bars_are_as_high_as_the_channels():
    lines = channel_lines(view_of([[8.0, 4.0, 0.0, -1.0, 1e-9]]), "ort-cpu", 80)

    assert lines[0] == "channels:   5 along axis 1, amax by max: 1e-09 … 8, median 2.5"
    assert lines[1] == "imbalance:  3.2, the largest amax divided by the median"
    assert lines[2] == " " * 12 + "█▄ ▁▁"
    assert lines[3] == "dead:       2: 0 in every sample"


@pytest.mark.parametrize("width", [21, 40, 80])
def test_many_channels_share_bars(width):
    values = np.ones((1, 1000))
    values[0, 500] = 16

    bars = channel_lines(view_of(values), "ort-cpu", width)[2]

    assert len(bars) <= width and bars.count("█") == 1
    assert set(bars.strip()) == {"█", "▁"}


def test_dead_channels_are_named_as_far_as_one_reads():
    lines = channel_lines(view_of(np.zeros((2, 20))), "ort-cpu", 80)

    assert lines[0] == "channels:   20 along axis 1, amax by max"
    assert lines[1] == "dead:       0, 1, 2, 3, 4, 5, 6, 7 and 12 more: 0 in every sample"
    assert imbalance_of(np.zeros(3)) is None


def test_channels_without_a_finite_value_have_no_range():
    view = view_of([[np.nan, 1.0], [np.inf, -2.0]])

    found = encode(view)

    assert "not finite: 0: no finite value" in channel_lines(view, "ort-cpu", 80)
    assert found["minimum"] == ["inf", -2.0] and found["maximum"] == ["-inf", 1.0]
    assert found["rangeless"] == [0] and found["dead"] == []
    assert found["amax"] == [0.0, 2.0] and found["scale"][0] == 1.0


@each_case("total", [3, 1000, 10**6, 10**12])
@each_case("count", [0, 1, 2])
def test_a_share_is_0_or_100_only_where_it_is(count: int, total: int) -> None:
    assert (format_share(count, total) == "0 %") == (count == 0)
    assert (format_share(total - count, total) == "100 %") == (count == 0)


SHARES = {1: "0.0001 %", 12: "0.0012 %", 12_345: "1.23 %", 998_990: "99.9 %", 999_990: "99.999 %"}


@each_case("count, text", SHARES.items())
def test_a_share_has_the_digits_that_tell(count: int, text: str) -> None:
    assert format_share(count, 10**6) == text


def test_a_cut_bin_makes_the_share_a_bound() -> None:
    assert format_clipped((10, 20), 1000) == "≤2 %"
    assert format_clipped((20, 20), 1000) == "2 %"

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.collectors import channel_collector
from ptq_cli.collectors.bit_histogram import from_values
from ptq_cli.collectors.channel_collector import ChannelCollector
from ptq_cli.collectors.channel_kernels import CHANNEL_BITS, CHANNEL_SLOTS
from ptq_cli.collectors.channel_statistics import MOST_CHANNELS
from ptq_cli.collectors.collector_registry import COLLECTORS, make_collector
from ptq_cli.collectors.tensor_statistics import NonFinite, each_channel
from ptq_cli.core.errors import ActivationAxisError, UnknownNameError
from tests.each_case import each_case

RNG = np.random.default_rng(5)
SHAPES = [
    ((4, 3, 5, 6), 1),
    ((4, 3, 5, 6), 2),
    ((4, 3, 5, 6), -1),
    ((3, 40), 1),
    ((1100, 33), -1),
    ((2, 3, 1500), 1),
    ((700, 2, 2), 1),
    ((5, 1), 1),
    ((2, 17, 1, 1), 1),
]


def spread(shape):
    """Values of many octaves, zeros and both signs."""
    values = RNG.normal(size=shape) * np.exp2(RNG.integers(-60, 60, size=shape))
    return np.where(RNG.random(shape) < 0.2, 0, values).astype(np.float32)


def require_counted(statistics, columns):
    """Compare each channel with the definition."""
    assert statistics.size == len(columns)
    for channel, values in zip(each_channel(statistics), columns, strict=True):
        finite = values[np.isfinite(values)]
        assert channel.count == finite.size
        assert channel.histogram == from_values(finite, CHANNEL_BITS)
        assert channel.zeros == np.count_nonzero(finite == 0)
        if finite.size:
            assert (channel.minimum, channel.maximum) == (finite.min(), finite.max())


@each_case("shape, axis", SHAPES, ids=str)
def test_ranges_alone_are_those_of_each_channel(shape, axis):
    values = spread(shape)
    collector = ChannelCollector(axis, histograms=False)
    collector.update(values)
    found = collector.statistics()
    columns = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    np.testing.assert_array_equal(found.minimum, columns.min(axis=1))
    np.testing.assert_array_equal(found.maximum, columns.max(axis=1))
    assert found.minimum.dtype == np.float32 and found.histograms is None
    assert found.count.tolist() == [columns.shape[1]] * len(columns)


EVERY_FLOAT = st.integers(0, 2**32 - 1)


@given(
    bits=st.lists(st.tuples(EVERY_FLOAT, EVERY_FLOAT), min_size=1, max_size=60),
    cut=st.integers(0, 60),
    last=st.booleans(),
)
def test_any_bits_in_any_order_are_counted_as_the_definition_does(bits, cut, last):
    # NaN, infinities, denormals and both zeros are among them; the largest octave grows as it may.
    values = np.array(bits, np.uint32).view(np.float32)
    shaped = values if last else values.reshape(-1, 2, 1)
    collector = ChannelCollector(1)
    collector.update(shaped[:cut])
    collector.update(shaped[cut:])
    require_counted(collector.statistics(), values.T)


def test_more_values_than_a_slot_holds_are_settled(monkeypatch):
    monkeypatch.setattr(channel_collector, "_SLOT_LIMIT", 1000)
    values = spread((900, 2, 3))
    collector = ChannelCollector(1)
    for part in np.array_split(values, 4):
        collector.update(part)
    require_counted(collector.statistics(), values.transpose(1, 0, 2).reshape(2, -1))


def test_table_of_a_channel_is_small():
    collector = ChannelCollector(1)
    collector.update(spread((2, 2048)))
    assert collector._table.nbytes == 2048 * CHANNEL_SLOTS * 4 < 52e6


@pytest.mark.parametrize(("first", "second"), [(3, 4), (3, 1), (1, 3)])
def test_changed_number_of_channels_is_refused(first, second):
    collector = ChannelCollector(1, name="conv")
    collector.update(np.ones((2, first), np.float32))
    with pytest.raises(ActivationAxisError) as caught:
        collector.update(np.ones((2, second), np.float32))
    assert caught.value.code == "PTQ-CALIB-006"
    assert caught.value.message == f"axis 1 of tensor 'conv' had {first} channels and now has {second}"
    assert collector.statistics().count.tolist() == [2] * first


@each_case(
    "axis, shape, message",
    [
        (2, (2, 3), "tensor 'conv' of shape (2, 3) has no axis 2"),
        (-3, (2, 3), "tensor 'conv' of shape (2, 3) has no axis -3"),
        (1, (2,), "tensor 'conv' of shape (2) has no axis 1"),
        (0, (2, 3), "axis 0 of tensor 'conv' holds its samples, not its channels"),
        (-2, (2, 3), "axis -2 of tensor 'conv' holds its samples, not its channels"),
        (
            1,
            (1, MOST_CHANNELS + 1),
            f"axis 1 of tensor 'conv' has {MOST_CHANNELS + 1} channels, the limit is {MOST_CHANNELS}",
        ),
    ],
)
def test_axis_that_cannot_be_is_refused(axis, shape, message):
    with pytest.raises(ActivationAxisError) as caught:
        ChannelCollector(axis, name="conv").update(np.ones(shape, np.float32))
    assert caught.value.message == message and caught.value.hint


@pytest.mark.parametrize("order", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_minus_zero_leaves_no_trace(order):
    collector = ChannelCollector(1)
    for value in order:
        collector.update(np.array([[value]], np.float32))
    found = collector.statistics()
    assert not np.signbit(found.minimum).any() and not np.signbit(found.maximum).any()
    assert found.zeros.tolist() == [2]


BAD = np.float32([[np.nan, 1.0, -np.inf], [np.inf, -3.0, 0.0], [np.nan, 2.0, 4.0]])
FINITE = BAD[np.isfinite(BAD)]

each_method = pytest.mark.parametrize("method", COLLECTORS)


@each_method
def test_what_is_not_finite_is_counted_and_the_rest_as_if_alone(method):
    collector, alone = make_collector(method, allow_nonfinite=True), make_collector(method)
    assert collector.update(BAD) and alone.update(FINITE)
    found, wanted = collector.statistics(), alone.statistics()
    assert found.nonfinite == NonFinite(nan=2, positive=1, negative=1)
    assert (found.count, found.zeros, found.low, found.high) == (5, wanted.zeros, -3.0, 4.0)
    assert found.histogram == wanted.histogram
    assert not found.dead and not found.rangeless


@each_method
def test_channels_alone_do_not_allow_what_is_not_finite(method):
    collector = make_collector(method, axis=1)
    assert collector.update(np.ones((2, 3), np.float32))
    before = collector.statistics()
    assert not collector.update(BAD)
    assert collector.statistics() == before


@pytest.mark.parametrize("method", COLLECTORS)
def test_each_method_makes_a_new_collector(method):
    assert make_collector(method) is not make_collector(method)


def test_unknown_method_names_the_nearest_and_all():
    with pytest.raises(UnknownNameError) as caught:
        make_collector("histgram")
    assert caught.value.message == "unknown method 'histgram' (did you mean 'histogram'?)"
    assert caught.value.hint == "known: histogram, max"

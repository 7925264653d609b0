"""Decoding ahead changes when things happen, and nothing else."""

import threading
from contextlib import closing

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch, require_finite
from ptq_cli.calibdata.dataset.decode_ahead import decoded_ahead
from ptq_cli.core.errors import DamagedSampleError, NonFiniteDataError
from tests.each_case import each_case


def numbered(count, fail_at=None):
    for number in range(count):
        if number == fail_at:
            raise DamagedSampleError(f"image {number} is damaged")
        yield Batch({"": np.full(2, number)}, None, (f"{number}a", f"{number}b"))


@each_case("count", [0, 1, 2, 50])
def test_batches_come_in_order(count):
    assert [batch.names[0] for batch in decoded_ahead(numbered(20), count)] == [f"{n}a" for n in range(20)]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_error_comes_after_the_batches_before_it(count):
    seen = []
    with pytest.raises(DamagedSampleError, match="image 3 is damaged"):
        for batch in decoded_ahead(numbered(9, fail_at=3), count):
            seen.append(batch.names[0])
    assert seen == ["0a", "1a", "2a"]


def test_no_more_is_decoded_than_was_asked_for():
    made, gate = [], threading.Event()

    def source():
        for batch in numbered(10):
            made.append(batch.names[0])
            if len(made) == 4:  # One was read, two wait, and one is held until there is room.
                gate.set()
            yield batch

    with closing(decoded_ahead(source(), 2)) as batches:
        next(batches)
        assert gate.wait(10)
        assert len(made) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_reader_that_ends_early_ends_the_thread(error):
    closed = []

    def source():
        try:
            yield from numbered(1000)
        finally:
            closed.append(True)

    with pytest.raises(error), closing(decoded_ahead(source(), 1)) as batches:
        next(batches)
        raise error
    assert closed == [True]
    assert not [thread for thread in threading.enumerate() if thread.name == "decode"]


def test_nothing_stays_nothing():
    assert list(decoded_ahead(iter(()), 2)) == []


def test_a_source_that_waits_keeps_no_reader_that_ends():
    waiting, free = threading.Event(), threading.Event()

    def source():
        yield from numbered(1)
        waiting.set()
        free.wait(600)

    reader = decoded_ahead(source(), 2)
    next(reader)
    assert waiting.wait(60)
    reader.close()
    assert not free.is_set(), "it returned while the source still waited"
    free.set()


def batch_of(array):
    return Batch({"x": array}, None, tuple(f"s{row}" for row in range(len(array))))


@each_case("dtype", ["float16", "float32", "float64"])
@each_case("value, text", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_first_value_is_named(dtype, value, text):
    array = np.zeros((3, 4, 5), dtype)
    array[1, 2, 3] = array[2, 0, 0] = value
    with pytest.raises(NonFiniteDataError, match=rf"input 'x' holds {text} at \[2, 3\] of sample 's1'"):
        require_finite(batch_of(array))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_largest_values_are_finite(dtype):
    require_finite(batch_of(np.full((4, 4), np.finfo(dtype).max, dtype)))


def test_every_input_is_checked():
    batch = Batch({"a": np.zeros(1, np.float32), "b": np.array([np.nan])}, None, ("s",))
    with pytest.raises(NonFiniteDataError, match="input 'b'"):
        require_finite(batch)

"""Runs under way at once: the order, the errors, and the end are as if they were one by one.

A model whose tensors stay on a device gives what a plain session gives; the device here is the host.
"""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibration.count_batches import pieces, work_ahead
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass


def values_batch(*values):
    return Batch({"x": np.array(values, np.float32)}, None, tuple(str(value) for value in values))


BATCHES = [values_batch(number, number + 0.5) for number in range(9)]


def work(forward, batches=BATCHES, stop_after=lambda piece: False):
    return work_ahead(
        pieces(iter(batches), forward),
        lambda piece: piece.turn.run(piece.batch.inputs),
        forward.at_once,
        stop_after,
    )


def results(forward, batches=BATCHES):
    return [(piece.start, piece.last, arrays[0].tolist()) for piece, arrays in work(forward, batches)]


def one_pass(run, at_once=1, **rest):
    return Forward((ForwardPass(taps=("y",), run=run),), at_once, **rest)


def halves(batch):
    return [
        Batch({"x": batch.inputs["x"][i : i + 1]}, None, batch.names[i : i + 1]) for i in range(batch.size)
    ]


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_order_is_that_of_the_batches(at_once):
    def run(inputs):
        time.sleep(0.004 if int(inputs["x"][0]) % 2 else 0.0)
        return [inputs["x"] * 10]

    expected = [(0, True, [number * 10, number * 10 + 5]) for number in range(9)]
    assert results(one_pass(run, at_once)) == expected


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_error_comes_after_what_was_before_it(at_once):
    def run(inputs):
        if inputs["x"][0] == 4:
            raise RuntimeFailedError("the fifth fails")
        return [inputs["x"]]

    forward, seen = one_pass(run, at_once), []
    with pytest.raises(RuntimeFailedError, match="the fifth fails"):
        for piece, _ in work(forward):
            seen.append(piece.batch.names[0])
    assert seen == ["0", "1", "2", "3"]


def test_no_more_runs_are_under_way_than_were_asked_for():
    running, most, lock = 0, 0, threading.Lock()

    def run(inputs):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return [inputs["x"]]

    results(one_pass(run, 2))
    assert most == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_reader_that_ends_early_leaves_no_thread_behind(error):
    forward = one_pass(lambda inputs: [inputs["x"]], 2)
    with pytest.raises(error), closing(work(forward)) as computed:
        next(computed)
        raise error
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward")]


def test_each_piece_takes_every_pass():
    passes = tuple(
        ForwardPass(taps=(name,), run=lambda inputs, f=factor: [inputs["x"] * f])
        for name, factor in (("a", 1), ("b", 2))
    )
    forward = Forward(passes, 2, halves)
    found = [
        (piece.turn.taps[0], piece.start, piece.first, piece.done, piece.last, arrays[0].tolist())
        for piece, arrays in work(forward, BATCHES[:1])
    ]
    assert found == [
        ("a", 0, True, False, False, [0]),
        ("b", 0, False, True, False, [0]),
        ("a", 1, True, False, False, [0.5]),
        ("b", 1, False, True, True, [1]),
    ]


def test_nothing_later_is_begun_before_what_is_stopped_after_was_yielded():
    begun = []

    def run(inputs):
        begun.append(int(inputs["x"][0]))
        return [inputs["x"]]

    seen = []
    for piece, _ in work(one_pass(run, 3), stop_after=lambda piece: piece.batch.names[0] in "25"):
        seen.append(int(piece.batch.names[0]))
        if seen[-1] in (2, 5):
            assert sorted(begun) == seen
    assert seen == list(range(9))

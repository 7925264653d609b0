"""Runs under way at once: the order, the errors, and the end are as if they were one by one."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from ptq_cli.calibdata.batch import Batch
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.forward import Forward, pieces, run_ahead


def batch_of(*values):
    return Batch({"x": np.array(values, np.float32)}, None, tuple(str(value) for value in values))


BATCHES = [batch_of(number, number + 0.5) for number in range(9)]


def results(forward, batches=BATCHES):
    return [
        (piece.start, piece.last, arrays[0].tolist())
        for piece, arrays in run_ahead(pieces(iter(batches), forward), forward)
    ]


def halves(batch):
    return [
        Batch({"x": batch.inputs["x"][i : i + 1]}, None, batch.names[i : i + 1]) for i in range(batch.size)
    ]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_order_is_that_of_the_batches(ahead):
    def run(inputs):
        time.sleep(0.004 if int(inputs["x"][0]) % 2 else 0.0)
        return [inputs["x"] * 10]

    expected = [(0, True, [number * 10, number * 10 + 5]) for number in range(9)]
    assert results(Forward(run, ahead)) == expected


def test_pieces_know_their_place():
    found = results(Forward(lambda inputs: [inputs["x"]], 2, halves), BATCHES[:2])

    assert found == [(0, False, [0]), (1, True, [0.5]), (0, False, [1]), (1, True, [1.5])]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_error_comes_after_what_was_before_it(ahead):
    def run(inputs):
        if inputs["x"][0] == 4:
            raise RuntimeFailedError("the fifth fails")
        return [inputs["x"]]

    forward, seen = Forward(run, ahead), []
    with pytest.raises(RuntimeFailedError, match="the fifth fails"):
        for piece, _ in run_ahead(pieces(iter(BATCHES), forward), forward):
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

    results(Forward(run, 2))

    assert most == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_reader_that_ends_early_leaves_no_thread_behind(error):
    forward = Forward(lambda inputs: [inputs["x"]], 2)

    with pytest.raises(error), closing(run_ahead(pieces(iter(BATCHES), forward), forward)) as computed:
        next(computed)
        raise error

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward")]

"""The samples to learn from and to judge by.

Ctrl-C during a rung: kept where that was asked for, an error otherwise.
"""

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core import process
from ptq_cli.core.errors import RecoveryError
from ptq_cli.core.progress import Progress
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.recover.recovery_context import Interruptions, RecoveryData, samples_in
from tests.each_case import each_case
from tests.own_process import own_process


def data_of(count: int, fixed: int | None = None) -> RecoveryData:
    """Samples that hold their own number."""

    def batches(size: int) -> Iterator[Batch]:
        for start in range(0, count, size):
            numbers = np.arange(start, min(start + size, count), dtype=np.float32)[:, None]
            yield Batch({"x": numbers}, None, tuple(map(str, range(len(numbers)))))

    dataset = cast(Dataset, SimpleNamespace(batches=batches))
    spec = TensorSpec("x", np.dtype("f4"), (fixed, 1))
    return RecoveryData(dataset=dataset, inputs=(spec,), allow_nonfinite=False)


def numbers(pieces: Any) -> list[int]:
    return [int(number) for piece in pieces for number in piece["x"].ravel()]


@each_case("count, aside", [(40, [7, 15, 23, 31, 39]), (5, [4]), (2, [1])])
def test_every_eighth_sample_is_held_out_or_the_last_of_fewer(count: int, aside: list[int]) -> None:
    samples, learned, judged = data_of(count).samples
    assert numbers(samples.decide) == aside
    assert sorted(numbers(samples.pieces)) == list(range(count))
    assert learned == count - len(aside)
    # The last of the others join those held out, three eighths together.
    assert judged == max(len(aside), -(-count * 3 // 8))
    assert sum(map(samples_in, samples.judge)) == judged


def test_batches_of_a_fixed_size_are_not_cut() -> None:
    samples, learned, judged = data_of(40, fixed=4).samples
    assert [len(piece["x"]) for piece in samples.pieces] == [4] * 10
    assert numbers(samples.decide) == [28, 29, 30, 31]
    assert (learned, judged) == (36, 16)


def test_one_sample_is_too_few() -> None:
    with pytest.raises(RecoveryError, match="at least 2 samples"):
        _ = data_of(1).samples


def test_without_being_asked_nothing_stops_a_rung() -> None:
    told: list[Progress] = []
    interruptions = Interruptions(told.append, asked=False)
    with interruptions.rung() as stop:
        assert not stop()
    assert (interruptions.stopped, told) == (False, [])


@own_process
def test_ctrl_c_ends_a_rung_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OWN", [True])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    told: list[Progress] = []
    interruptions = Interruptions(told.append, asked=True)
    try:
        with interruptions.rung(", and so on") as stop:
            assert not stop()
            os.kill(os.getpid(), signal.SIGINT)
            assert stop()
    finally:
        signal.signal(signal.SIGINT, before)
    assert interruptions.stopped
    assert [item.note for item in told] == [
        "Ctrl-C ended the recovery; what was found until then is kept if it helps, and so on"
    ]

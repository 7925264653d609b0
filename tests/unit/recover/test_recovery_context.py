"""Ctrl-C during a rung: kept where that was asked for, an error otherwise."""

import os
import signal

import pytest

from ptq_cli.core import process
from ptq_cli.core.progress import Progress
from ptq_cli.recover.recovery_context import Interruptions


def test_without_being_asked_nothing_stops_a_rung() -> None:
    told: list[Progress] = []
    interruptions = Interruptions(told.append, asked=False)
    with interruptions.rung() as stop:
        assert not stop()
    assert (interruptions.stopped, told) == (False, [])


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

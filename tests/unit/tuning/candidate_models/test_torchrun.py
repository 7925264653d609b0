"""Several processes do what the first one says, and its clock ends the climb of all of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from ptq_cli.core.errors import TimeBudgetError
from ptq_cli.core.progress import Progress, silent
from ptq_cli.setup.parts import Part
from ptq_cli.tuning.run_tune import BudgetClock

STEP = Progress("calibrate", 0, None)


def rank(is_first: bool, says: bytes, asked: list[bytes]) -> Part:
    """A process of two, where the first one says something."""

    def announce(content: bytes, place: str) -> bytes:
        asked.append(content)
        return says

    group: Any = SimpleNamespace(
        ranks=SimpleNamespace(is_first=is_first),
        announce=announce,
        next_place=lambda: "place",
        go_on=lambda: asked.append(b"step"),
    )
    return Part(group=group)


@pytest.mark.parametrize("says", [b"yes", b""])
def test_others_do_as_the_first_says_and_are_not_asked(says: bytes) -> None:
    asked: list[bytes] = []
    assert rank(is_first=False, says=says, asked=asked).agreed(lambda: 1 / 0 > 0) is bool(says)
    assert asked == [b""]


def test_a_clock_of_several_ends_nothing_between_two_candidates() -> None:
    asked: list[bytes] = []
    clock = BudgetClock(0.0, silent, rank(is_first=True, says=b"yes", asked=asked))
    clock.progress(STEP)
    assert clock.is_over()
    assert asked == [b"step", b"yes"]


def test_a_clock_of_one_ends_it_anywhere() -> None:
    clock = BudgetClock(1e6, silent, Part())
    clock.progress(STEP)
    clock.allow(0.0)
    assert clock.is_over()
    with pytest.raises(TimeBudgetError):
        clock.progress(STEP)

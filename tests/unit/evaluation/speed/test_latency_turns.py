"""Which clock counts, and which models are compared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ptq_cli.evaluation import latency as module
from ptq_cli.evaluation.latency import LatencyTurns
from ptq_cli.runtime.turns import Turns

CLOCK = (((1.0,), (1.0,)), ((3.0,), (3.0,)), ((6.0,), (6.0,)))
SHORT = (((1e-6,), (2e-6,)), ((2e-6,), (1e-6,)))
PROCESSORS = (((1.0,), (1.0,)), ((2.0,), (2.0,)), ((8.0,), (8.0,)))


@pytest.mark.parametrize(("threads", "ratio", "other", "median"), [(1, 2.0, 0.25, 8e3), (2, 3.0, 0.5, 6e3)])
def test_one_thread_is_compared_in_processor_time(threads, ratio, other, median):
    found = LatencyTurns([Turns(CLOCK, PROCESSORS)], threads=threads)
    assert found.ratio(1, 0).value == pytest.approx(ratio)
    assert found.ratio(1, -1).value == pytest.approx(other)
    assert found.median_ms(-1) == pytest.approx(median)


@pytest.mark.parametrize(
    ("limited", "held_up", "expected"),
    [(False, 1.0, 6), (False, 2.0, 20), (True, 1.0, 20)],
    ids=["clear", "unclear", "limited"],
)
def test_rounds_are_taken_until_each_model_was_first_and_the_ratio_is_clear(
    monkeypatch, *, limited, held_up, expected
):
    def rounds(*_: object, **words: object) -> Iterator[Turns]:
        asked.update(words)
        for index in range(20):
            seconds = (((1.0,),), ((held_up if index % 2 else 1 / held_up,),), ((1.0,),))
            yield Turns(seconds, seconds)

    asked: dict[str, object] = {}
    monkeypatch.setattr(module, "opener", lambda *_, **__: None)
    monkeypatch.setattr(module, "take_rounds", rounds)
    found = module.take_latency_turns([Path("a"), Path("b"), Path("c")], [{}], threads=2, limited=limited)
    length = module.LIMITED_SECONDS if limited else module.SECONDS
    assert asked == {"seconds": length, "most_runs": None if limited else module.ENOUGH_RUNS}
    assert len(found.rounds) == expected


def test_what_is_too_fast_to_compare_is_not_unclear() -> None:
    assert not LatencyTurns([Turns(SHORT, SHORT)], threads=2).is_unclear

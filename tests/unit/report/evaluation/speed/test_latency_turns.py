"""Which clock counts, and which models are compared."""

from pathlib import Path

import pytest

from ptq_cli.report.evaluation.speed import latency_turns as module
from ptq_cli.report.evaluation.speed.latency_turns import LatencyTurns
from ptq_cli.runtime.turns import Turns

CLOCK = (((1.0,), (1.0,)), ((3.0,), (3.0,)), ((6.0,), (6.0,)))
SHORT = (((1e-6,), (2e-6,)), ((2e-6,), (1e-6,)))
PROCESSORS = (((1.0,), (1.0,)), ((2.0,), (2.0,)), ((8.0,), (8.0,)))


@pytest.mark.parametrize(("threads", "ratio", "other", "median"), [(1, 2.0, 0.25, 8e3), (2, 3.0, 0.5, 6e3)])
def test_one_thread_is_compared_in_processor_time(
    threads: int, ratio: float, other: float, median: float
) -> None:
    found = LatencyTurns([Turns(CLOCK, PROCESSORS)], threads=threads)
    assert found.ratio(1, 0).value == pytest.approx(ratio)
    assert found.ratio(1, -1).value == pytest.approx(other)
    assert found.median_ms(-1) == pytest.approx(median)


def test_an_unclear_ratio_gets_more_turns_until_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    def take(*_: object, seconds: float, **__: object) -> Turns:
        taken.append(seconds)
        noise = (0.5, 2.0) if len(taken) < 3 else (1.0,) * 60
        return Turns(*[(((1.0,),) * len(noise), tuple((one,) for one in noise))] * 2)

    monkeypatch.setattr(module, "opener", lambda *_, **__: lambda _which: [None, None])
    monkeypatch.setattr(module, "take_turns", take)
    found = module.take_latency_turns([Path("a"), Path("b")], [{}], threads=2, limited=False)
    assert len(taken) == 3 and taken == sorted(taken, reverse=True)
    assert found.turns == 64
    monkeypatch.setattr(module, "SECONDS", 0.0)
    taken.clear()
    assert module.take_latency_turns([Path("a"), Path("b")], [{}], threads=2, limited=False).turns == 2
    assert not LatencyTurns([Turns(SHORT, SHORT)], threads=2).is_unclear

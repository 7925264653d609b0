"""Sessions take turns, and long ones take few."""

import time
from itertools import groupby

import numpy as np
import pytest

from ptq_cli.latency.operator_times import FEWEST_LONG_RUNS, FEWEST_RUNS, RUNS_A_TURN, take_clocks, whole_runs

BATCHES = [{"x": np.zeros(1, np.float32)}, {"x": np.ones(1, np.float32)}]


class Sleeper:
    """Stands for a session: a run takes so long, and is noted."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, float]]) -> None:
        self._name, self._seconds, self._log = name, seconds, log

    def run(self, batch: dict[str, np.ndarray]) -> None:
        time.sleep(self._seconds)
        self._log.append((self._name, float(batch["x"][0])))


@pytest.mark.parametrize(
    ("seconds", "runs", "count"),
    [(0.0, RUNS_A_TURN, FEWEST_RUNS), (0.06, 1, FEWEST_LONG_RUNS)],
    ids=["short", "long"],
)
def test_sessions_take_turns(seconds: float, runs: int, count: int) -> None:
    log: list[tuple[str, float]] = []
    sessions = [Sleeper(name, seconds, log) for name in "ab"]
    times = take_clocks(sessions, BATCHES, threads=2, seconds=0.0)  # type: ignore[arg-type]
    assert [len(found) for found in times] == [count, count]
    assert min(min(found) for found in times) >= seconds * 1e6
    counted = log[len(sessions) :]
    turns = [(name, len(list(group))) for name, group in groupby(name for name, _ in counted)]
    assert turns == [("a", runs), ("b", runs)] * (count // runs)
    assert {batch for _, batch in counted} == {0.0, 1.0}


def test_one_thread_is_timed_by_the_processor() -> None:
    [times] = take_clocks([Sleeper("a", 0.02, [])], BATCHES, threads=1, seconds=0.0)  # type: ignore[list-item]
    assert whole_runs(times).fast < 5_000  # It slept for 20,000.

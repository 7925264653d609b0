"""A kernel's time is that of the node that it is named for, whichever nodes were merged into it."""

import time
from itertools import groupby

import numpy as np
import pytest

from ptq_cli.latency.operator_times import (
    FEWEST_LONG_RUNS,
    FEWEST_RUNS,
    PROFILED_RUNS_A_TURN,
    node_times,
    take_clocks,
    whole_runs,
)
from tests.unit.plan.graphs import build, sample

MERGED = """(float[N,3,32,32] x) => (float[N,8,32,32] y)
    <float[8,3,3,3] w, float[8] a, float[8] b, float[8] c, float[8] d, float[8,3,1,1] u> {
    h = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(h, a, b, c, d) r = Relu(n)
    s = Conv(x, u) t = Add(r, s) y = HardSwish(t) }"""


def test_a_convolution_has_the_time_of_what_was_merged_into_it():
    model = build(MERGED)
    found = node_times(model, [sample(model, batch=1)], threads=1, seconds=0.0)
    assert [node.operator for node in found] == [node.op_type for node in model.graph]
    times = {node.name: node.microseconds for node in found}
    assert times["h"] > 0 and times["s"] > 0
    assert times["n"] == times["r"] == 0


def test_names_need_not_be_unique():
    model = build("(float[N,64] x) => (float[N,64] y) { a = Exp(x) b = Neg(a) c = Sqrt(b) y = Exp(c) }")
    for node in model.graph:
        node.name = ""
    batch = {"x": np.ones((64, 64), np.float32)}
    found = node_times(model, [batch], threads=1, seconds=0.0)
    assert [node.operator for node in found] == ["Exp", "Neg", "Sqrt", "Exp"]
    assert all(node.microseconds > 0 for node in found)


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
    [(0.0, PROFILED_RUNS_A_TURN, FEWEST_RUNS), (0.06, 1, FEWEST_LONG_RUNS)],
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

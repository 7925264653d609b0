"""Numbers that say little say why."""

from dataclasses import replace

from ptq_cli.evaluation.latency import LatencyComparison, ModelLatency
from ptq_cli.report.text import result_warnings as doubts
from tests.each_case import each_case

QUIET = ModelLatency(
    runs=60, p50=1e-3, p90=1.1e-3, p99=1.2e-3, mean=1e-3, processor=1e-3, spread=1.01, samples_per_second=1e3
)


def found(threads=1, **changes):
    models = (QUIET, replace(QUIET, **changes))
    return LatencyComparison(models=models, ratios=(), turns=20, rounds=1, batch=1, threads=threads)


@each_case(
    "changes, said",
    [
        ({}, ()),
        ({"p50": 9e-6}, ("a run of 'b' takes 9 µs, and a good part of that is the call itself: "
         "measure a larger --batch",)),
        ({"spread": 2.34}, ("the machine is busy: the median run takes 2.3 times as long as a fast one; "
         "try again when it is idle",)),
        ({"mean": 2e-3}, ("the machine is busy: a run takes 2.0 times its processor time; "
         "try again when it is idle, or compare the processor times",)),
        ({"mean": 2e-3, "threads": 2}, ()),  # A thread that waits for another takes no processor time either.
        ({"threads": 3}, ("3 threads share 2 cores: a run waits for them in turn",)),
    ],
)  # fmt: skip
def test_why_numbers_say_little(monkeypatch, changes, said):
    monkeypatch.setattr(doubts, "usable_cores", lambda: 2)
    assert doubts.latency_doubts(found(**changes), ["a", "b"]) == said

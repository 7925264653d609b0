"""The last lines of an export: each number with its word, and what cannot be had."""

from ptq_cli.evaluation.document.gate_result import Times
from ptq_cli.evaluation.interval import Interval
from ptq_cli.recover.recovery_effects import ReachedAccuracy
from ptq_cli.shown.verdict import verdict_lines
from tests.measured import latency_of

LOW = ReachedAccuracy(sqnr_db=14.2, goal_db=20.0, samples=1)


def last(*given: object) -> str:
    return [*verdict_lines(*given)][-1]  # type: ignore[arg-type]


def test_all_three_are_had_or_what_is_not_is_said() -> None:
    good = ReachedAccuracy(sqnr_db=31.0, goal_db=20.0, samples=32)
    assert last(good, (400, 100)) == "PASS: at least 20 dB, and not larger than float"
    for ratio, word in ((0.5, "faster than"), (1.0, "about as fast as")):
        times = Times(
            "now", latency_of(ratio, ratio_interval=Interval(ratio - 0.01, ratio + 0.01, "student"))
        )
        assert last(good, (400, 100), times) == f"PASS: at least 20 dB, {word} float, and not larger"
    assert last(good, (100, 400)) == "larger than float, 400.0 % of float"
    slow = Times("now", latency_of(1.25, ratio_interval=Interval(1.2, 1.3, "student")))
    assert last(good, (400, 100), slow).startswith("slower than float on this machine, 0.80 times")
    assert last(LOW, (400, 100)).startswith("below the goal: 14.2 of 20 dB, because nothing that was")


def test_without_a_comparison_nothing_is_judged() -> None:
    assert [*verdict_lines(None, (400, 100))] == ["size: 100 bytes, 25.0 % of float"]

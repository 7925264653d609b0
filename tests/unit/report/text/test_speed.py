"""How fast a quantized model is, in words: also where nothing can be said."""

from dataclasses import replace

import pytest

from ptq_cli.evaluation.document.gate_result import SWITCHED_OFF, Latency, OwnFileLatency, Times
from ptq_cli.evaluation.interval import Interval
from ptq_cli.evaluation.latency import LatencyComparison, ModelLatency
from ptq_cli.latency import latency_doubts as doubts
from ptq_cli.report.text.speed import slower_warning, speed_lines
from tests.each_case import each_case

CREATED = "2026-01-31T12:00:00Z"


def measured(ratio: float, low: float, high: float, **more: object) -> Latency:
    found = Latency(
        float_ms=2.0,
        quantized_ms=2.0 * ratio,
        batch_size=8,
        threads=1,
        rounds=30,
        ratio=ratio,
        ratio_interval=Interval(low, high, "student"),
    )
    return replace(found, **more)  # type: ignore[arg-type]


@each_case(
    "latency, says",
    [
        (measured(0.5, 0.4, 0.625), "2.00 times as fast as float (1.60 to 2.50) at batch 8, 1 thread"),
        (
            measured(2.0, 1.6, 2.5),
            "slower than float: 0.50 times as fast (0.40 to 0.62) at batch 8, 1 thread",
        ),
        (
            measured(1.01, 0.99, 1.03),
            "about as fast as float: 0.99 times as fast (0.97 to 1.01) at batch 8, 1 thread",
        ),
        (
            measured(1.0, 0.5, 2.0),
            "the machine is too busy to tell whether it is faster than float: 1.00 times as fast "
            "(0.50 to 2.00) at batch 8, 1 thread; ptq bench measures for longer",
        ),
        (
            measured(2.0, 1.6, 2.5, float_ms=0.012),
            "too fast to compare with float: a run takes 12 µs at batch 8, 1 thread, which is mostly the "
            "call itself",
        ),
    ],
    ids=["faster", "slower", "equal", "busy", "too fast"],
)
def test_what_is_said_of_the_float_model(latency: Latency, says: str) -> None:
    assert speed_lines(Times(CREATED, latency)) == [says]
    assert (slower_warning(latency, "next") is not None) is says.startswith("slower")


def test_the_users_own_file_has_a_line_of_its_own() -> None:
    own = OwnFileLatency("net.onnx", 3.0, 1.25, Interval(1.2, 1.3, "student"))
    latency = measured(0.5, 0.4, 0.6, own=own)
    assert speed_lines(Times(CREATED, latency))[1] == "0.80 times as fast as your 'net.onnx' (0.77 to 0.83)"
    warning = slower_warning(latency, "ptq export --prefer latency")
    assert warning.message == "the quantized model is slower than 'net.onnx', 0.80 times as fast"
    assert warning.hints == ("ptq export --prefer latency",)
    fault = measured(0.5, 0.4, 0.6, own_fault="it has no kernel for this")
    assert speed_lines(Times(CREATED, fault))[1].endswith("not measured: it has no kernel for this")


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("", []),
        (SWITCHED_OFF, []),
        (
            "target tensorrt is not run by ONNX Runtime",
            ["note: the latency was not measured: target tensorrt is not run by ONNX Runtime"],
        ),
    ],
)
def test_what_was_not_measured_is_told_unless_nobody_wanted_it(reason: str, says: list[str]) -> None:
    assert speed_lines(Times(CREATED, None, reason)) == says


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

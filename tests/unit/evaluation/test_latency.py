from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ptq_cli.evaluation import latency
from ptq_cli.evaluation import latency as module
from ptq_cli.evaluation.latency import LatencyTurns, Scenario, latency_ratio, measure_latencies
from ptq_cli.runtime.engine_registry import OnnxRuntime
from ptq_cli.runtime.timing import Duration, Turns
from tests.day import fewer
from tests.each_case import each_case


def turns_of(*models) -> list[Turns]:
    runs = tuple(tuple((float(value),) for value in model) for model in models)
    return [Turns(runs, runs)]


def test_a_machine_that_drifts_changes_no_ratio():
    machine = np.linspace(1.0, 3.0, 50)
    ratio = latency_ratio(turns_of(machine, 0.5 * machine), 1)
    assert ratio.value == pytest.approx(0.5)
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx((0.5, 0.5))
    assert ratio.speed_up == pytest.approx(2.0)


def test_the_interval_holds_the_ratio_of_noisy_turns_and_is_narrow_with_many():
    random = np.random.default_rng(0)
    widths = []
    for count in (50, 5000):
        noise = np.exp(0.2 * random.standard_normal((2, count)))
        ratio = latency_ratio(turns_of(noise[0], 0.8 * noise[1]), 1)
        assert ratio.interval.low < 0.8 < ratio.interval.high
        widths.append(ratio.interval.high - ratio.interval.low)
    assert widths[1] < widths[0] / 5


@each_case("turns", fewer([5, 2, 20], 3))
@each_case("spiky", fewer([True, False], 2))
def test_the_interval_holds_the_ratio_in_95_of_100_cases_however_few_turns_there_are(turns, spiky):
    random = np.random.default_rng(turns)
    held = 0
    for _ in range(400):
        noise = 0.05 * random.standard_normal((2, turns))
        noise += (random.random((2, turns)) < 0.05) * random.exponential(1.0, (2, turns)) * spiky
        interval = latency_ratio(turns_of(np.exp(noise[0]), 0.8 * np.exp(noise[1])), 1).interval
        held += interval.low <= 0.8 <= interval.high
    assert held / 400 > 0.92


def test_a_ratio_turned_round_is_its_reciprocal():
    random = np.random.default_rng(0)
    one, other = np.exp(random.standard_normal((2, 30)))
    there, back = latency_ratio(turns_of(one, other), 1), latency_ratio(turns_of(other, one), 1)
    assert there.value == pytest.approx(1 / back.value)


def test_one_run_that_was_held_up_is_left_out_of_its_turn():
    calm = tuple((1.0, 1.0, 1.0) for _ in range(9))
    held = ((1.0, 50.0, 1.0), *calm[1:])
    assert latency_ratio([Turns((calm, held), (calm, held))], 1).value == 1.0


def test_work_that_holds_up_one_model_more_than_the_other_changes_no_ratio():
    random = np.random.default_rng(0)
    rounds = []
    for load in (0.1, 0.8, 0.5, 0.3):
        noise = 1 + 0.01 * random.random((2, 200))
        held = np.where(random.random((2, 200)) < load, 1 + random.random((2, 200)) * [[1], [5]], 1)
        rounds += turns_of(*(noise * held))
    ratio = latency_ratio(rounds, 1)
    assert ratio.interval.low < 1 < ratio.interval.high
    assert ratio.value == pytest.approx(1.0, abs=0.01)


def test_what_opening_the_models_anew_changes_is_in_the_interval():
    random = np.random.default_rng(0)
    rounds = []
    for luck in (-0.01, 0.01, -0.01, 0.01):
        noise = 0.001 * random.standard_normal((2, 100))
        rounds += turns_of(np.exp(noise[0]), np.exp(luck + noise[1]))
    whole = latency_ratio(rounds, 1)
    assert whole.interval.low < 1 < whole.interval.high
    assert not any(turns.interval.low < 1 < turns.interval.high for turns in map(of_one, rounds))


def of_one(turns):
    return latency_ratio([turns], 1)


def test_one_turn_has_no_interval():
    assert latency_ratio(turns_of([1.0], [2.0]), 1).interval is None


def test_processor_time_that_reads_zero_makes_no_infinity():
    clock, none = ((1.0,), (1.0,)), ((0.0,), (0.0,))
    assert latency_ratio([Turns((clock, clock), (none, none))], 1).processor == 1.0


def test_percentiles_are_of_all_counted_runs_and_throughput_of_their_mean(arithmetic_file):
    batch = {name: np.ones((8, 3), np.float32) for name in "xy"}
    (found,) = measure_latencies([arithmetic_file], [Scenario([batch], 1)], runs=60)
    (model,) = found.models
    assert found.ratios == ()
    assert (model.runs, found.batch, found.threads, found.turns) == (60, 8, 1, 20)
    assert 0 < model.p50 <= model.p90 <= model.p99
    assert model.samples_per_second == pytest.approx(8 / model.mean)


@pytest.fixture
def arithmetic_file(tmp_path):
    import onnx

    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[n, 3] x, float[n, 3] y) => (float[n, 3] z) { z = Add(x, y) }"""
    path = tmp_path / "add.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_scenarios_take_turns_round_by_round(arithmetic_file):
    opened = []

    class Counted(OnnxRuntime):
        def open(self, model, *, threads):
            opened.append(threads)
            return super().open(model, threads=threads)

    scenarios = [
        latency.Scenario([{name: np.ones((size, 3), np.float32) for name in "xy"}], threads, engine=Counted())
        for size, threads in ((1, 1), (4, 2))
    ]
    told = []
    found = latency.measure_latencies([arithmetic_file] * 2, scenarios, runs=9, progress=told.append)
    assert [(item.batch, item.threads, item.rounds) for item in found] == [(1, 1, 1), (4, 2, 1)]
    assert opened == [1, 1, 2, 2]
    samples = [sum(model.runs for model in item.models) // 2 * item.batch for item in found]
    assert (told[0].done, told[-1].done) == (0, sum(samples))
    assert [item.done for item in told] == sorted(item.done for item in told)


def test_rounds_of_one_scenario_alternate_with_those_of_another(monkeypatch):
    calls = []

    def rounds(_sessions, _models, batches, *_settings):
        for index in range(len(batches)):
            calls.append((len(batches), index))
            yield turns_of([1.0, 1.0], [2.0, 2.0])[0]

    monkeypatch.setattr(latency, "repeat_with_new_sessions", rounds)
    scenarios = [latency.Scenario([{"x": np.ones((4, 1))}] * count, 1) for count in (2, 3)]
    found = latency.measure_latencies([b"", b""], scenarios)
    assert calls == [(2, 0), (3, 0), (2, 1), (3, 1), (3, 2)]
    assert [item.rounds for item in found] == [2, 3]
    assert found[1].ratios[0].speed_up == pytest.approx(0.5)
    assert found[1].models[0].spread == 1.0


def test_processor_time_has_a_mean_and_an_interval():
    clock = ((1.0,), (2.0,)), ((1.0,), (2.0,))
    work = ((1.0,), (1.0,)), ((0.5,), (0.5,))
    ratio = latency_ratio([Turns(clock, work)], 1)
    assert (ratio.value, ratio.processor) == (1.0, 0.5)
    assert (ratio.processor_interval.low, ratio.processor_interval.high) == (0.5, 0.5)


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
    def rounds(*given: object) -> Iterator[Turns]:
        asked.append(given[-1])
        for index in range(20):
            seconds = (((1.0,),), ((held_up if index % 2 else 1 / held_up,),), ((1.0,),))
            yield Turns(seconds, seconds)

    asked: list[object] = []
    monkeypatch.setattr(module, "opener", lambda *_, **__: None)
    monkeypatch.setattr(module, "repeat_with_new_sessions", rounds)
    found = module.take_latency_turns([Path("a"), Path("b"), Path("c")], [{}], threads=2, limited=limited)
    length = module.LIMITED_SECONDS if limited else module._SECONDS
    assert asked == [Duration(length, most_runs=None if limited else module.ENOUGH_RUNS)]
    assert len(found.rounds) == expected


def test_what_is_too_fast_to_compare_is_not_unclear() -> None:
    assert not LatencyTurns([Turns(SHORT, SHORT)], threads=2).is_unclear

"""Axes of drawings: round marks, and an end that one far value does not push away."""

from ptq_cli.report.html.charts.axis_scale import Scale, nice_values
from tests.each_case import each_case


@each_case("low, high", [(0.0, 1.0), (-3.7, 0.2), (1e-9, 3e-9), (-1e30, 1e30), (99.9, 100.0)])
def test_marks_are_few_round_and_within(low: float, high: float) -> None:
    values = nice_values(low, high, 5)
    assert 2 <= len(values) <= 7
    slack = (high - low) * 1e-6
    assert all(low - slack <= value <= high + slack for value in values)


def test_a_value_beyond_an_end_stands_at_the_end() -> None:
    scale = Scale(low=0.0, high=10.0, start=100.0, end=0.0)
    assert [scale.at(value) for value in (-1.0, 0.0, 2.5, 10.0, 99.0)] == [100.0, 100.0, 75.0, 0.0, 0.0]
    assert [tick.text for tick in scale.ticks(5)] == ["0", "2", "4", "6", "8", "10"]

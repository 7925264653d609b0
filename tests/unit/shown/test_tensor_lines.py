"""The histogram in characters, and shares of values."""

from types import MappingProxyType

import numpy as np
import pytest

from ptq_cli.amax.choice import Choice
from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.arithmetic import parameters_from_range
from ptq_cli.core.formats import UINT8
from ptq_cli.pipeline.calibration_view import MethodView, TensorView
from ptq_cli.plan.sites import ActivationSite
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.report.text.numbers import format_share
from ptq_cli.shown.tensor_lines import LABEL, MARGIN, ROWS, draw_histogram, format_clipped, needs_log
from tests.each_case import each_case

RANDOM = np.random.default_rng(3)
UNIFORM = RANDOM.uniform(-1, 3, 50_000)
TAILS = RANDOM.standard_t(2, 50_000)


def make_tensor(values: np.ndarray, collector: type = HistogramCollector, **choices: Choice) -> TensorView:
    kept = collector()
    assert kept.update(np.asarray(values, np.float32))
    parameters = parameters_from_range(0.0, 1.0, UINT8)
    methods = {
        name: MethodView(method=name, choice=choice, parameters=parameters, clipped=None, error=None)
        for name, choice in choices.items()
    }
    site = ActivationSite(tensor="x", source="x", format=UINT8, symmetric=False)
    return TensorView(
        site=site,
        statistics=kept.statistics(),
        settings=AmaxSettings(),
        chosen="max",
        methods=MappingProxyType(methods),
    )


@each_case("width", [80, 160])
@each_case("values", [UNIFORM, TAILS, np.abs(TAILS), [7.0]], ids=["uniform", "tails", "+", "one"])
def test_it_is_as_wide_as_the_terminal(values: np.ndarray, width: int) -> None:
    lines = draw_histogram(make_tensor(values, max=Choice(-1.0, 3.0)), width)

    assert max(map(len, lines)) == width - 1
    assert all(character.isprintable() for line in lines for character in line)


def test_even_counts_are_drawn_on_a_linear_scale() -> None:
    lines = draw_histogram(make_tensor(UNIFORM), 80)

    assert lines[0] == "count of values, linear scale"
    assert "█" in lines[ROWS // 3] and lines[ROWS + 1].split()[0] == "0"


def test_far_counts_are_drawn_on_a_log_scale_that_is_named() -> None:
    lines = draw_histogram(make_tensor(TAILS), 80)

    assert lines[0] == "count of values, log scale"
    assert lines[ROWS + 1].split()[0] == "1"


def test_every_value_is_seen() -> None:
    lines = draw_histogram(make_tensor(np.append(UNIFORM, 20.0)), 80)

    assert lines[ROWS].rstrip()[-1] == "▁"


def test_zeros_are_told_and_not_drawn() -> None:
    values = np.concatenate([np.zeros(len(UNIFORM)), UNIFORM])

    lines = draw_histogram(make_tensor(values), 80)

    assert lines[0] == "count of values, linear scale; zeros (50 %) are not drawn"
    assert lines[1:] == draw_histogram(make_tensor(UNIFORM), 80)[1:]


def test_a_range_is_drawn_where_it_lies() -> None:
    tensor = make_tensor([-1.0, 3.0], max=Choice(-1.0, 3.0), mse=Choice(0.0, 1.0), entropy=Choice(-5.0, 3.0))

    *_, axis, whole, part, beyond = draw_histogram(tensor, MARGIN + 1 + 41)

    assert axis[MARGIN:] == "-1        0                             3"
    assert whole == f"{'max *':>{LABEL}}  ├{'─' * 39}┤"
    assert part == f"{'mse':>{LABEL}}  {' ' * 10}├{'─' * 9}┤"
    assert beyond == f"{'entropy':>{LABEL}}  ◄{'─' * 39}┤"


def test_a_range_without_width_is_a_stroke() -> None:
    tensor = make_tensor([-1.0, 3.0], mse=Choice(0.0, 1e-9))

    assert draw_histogram(tensor, 80)[-1].strip().split() == ["mse", "│"]


@pytest.mark.parametrize(
    ("values", "collector", "says"),
    [(np.zeros(4), HistogramCollector, "all values are 0"), (UNIFORM, MaxCollector, "kept only ranges")],
    ids=["dead", "only ranges"],
)
def test_without_counts_it_says_why(values: np.ndarray, collector: type, says: str) -> None:
    (line,) = draw_histogram(make_tensor(values, collector), 80)

    assert says in line


def test_a_single_column_needs_no_log() -> None:
    assert not needs_log(np.array([0.0, 5.0, 0.0]))


@each_case("total", [3, 1000, 10**6, 10**12])
@each_case("count", [0, 1, 2])
def test_a_share_is_0_or_100_only_where_it_is(count: int, total: int) -> None:
    assert (format_share(count, total) == "0 %") == (count == 0)
    assert (format_share(total - count, total) == "100 %") == (count == 0)


SHARES = {1: "0.0001 %", 12: "0.0012 %", 12_345: "1.23 %", 998_990: "99.9 %", 999_990: "99.999 %"}


@each_case("count, text", SHARES.items())
def test_a_share_has_the_digits_that_tell(count: int, text: str) -> None:
    assert format_share(count, 10**6) == text


def test_a_cut_bin_makes_the_share_a_bound() -> None:
    assert format_clipped((10, 20), 1000) == "≤2 %"
    assert format_clipped((20, 20), 1000) == "2 %"

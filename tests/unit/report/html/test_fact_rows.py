"""What each layer takes, as rows with bars."""

from dataclasses import replace

from ptq_cli.placement.fastest_placement import NodeTimes
from ptq_cli.report.html.fact_rows import MOST_TIMES, time_table
from ptq_cli.report.html.page_view import render_page
from tests.pages import Network

FOUND = Network(MOST_TIMES + 6).page_input()
LAYERS, PROFILE = FOUND.report.layers, FOUND.profile
assert PROFILE is not None


def test_the_slowest_layers_come_first_and_their_bars_have_one_scale() -> None:
    table = time_table(PROFILE, LAYERS)
    assert (len(table.rows), table.left_out) == (MOST_TIMES, 6)
    first, second, *_ = table.rows
    assert first.name == LAYERS[-1].name and first.anchor == len(LAYERS)
    assert (first.float_time, first.integer_time) == ("260 µs", "65 µs")
    assert (first.float_share, first.integer_share) == (100.0, 25.0)
    assert second.float_share == 96.2
    assert "test machine, onnxruntime 1.0, 1 sample a run, 2 threads" in table.source
    assert table.whole.startswith("2 ms in float, and 1 ms with")


def test_a_layer_that_is_part_of_another_has_no_time() -> None:
    first, second, third = (layer.name for layer in LAYERS[:3])
    nodes = {
        first: NodeTimes(10.0, 0.0),
        second: NodeTimes(0.0, 0.0),
        "not in the model": NodeTimes(9.0, 9.0),
    }
    table = time_table(replace(PROFILE, nodes=nodes), LAYERS)
    assert [(row.name, row.integer_time, row.integer_share) for row in table.rows] == [(first, "", 0.0)]
    assert time_table(replace(PROFILE, nodes={third: NodeTimes(0.0, 0.0)}), LAYERS) is None


def test_the_section_is_there_if_times_are_known() -> None:
    assert 'id="layer-times"' in render_page(FOUND)
    assert "layer-times" not in render_page(replace(FOUND, profile=None))

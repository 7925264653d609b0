"""The table of layers: what is known of each, and no empty column."""

from dataclasses import replace

from ptq_cli.report.html.fact_rows import Evidence, Origin
from ptq_cli.report.html.layer_table import LAST, layer_table
from tests.pages import Network

FOUND = Network(8).page_input()
ALL = [
    "Op",
    "Runs on",
    "Dtype",
    "Shape",
    "Range",
    "Clipped",
    "SQNR acc.",
    "SQNR isol.",
    "Sensitivity",
    "MACs",
]


def titles(evidence: Evidence = FOUND.evidence, *, analyzed: bool = True) -> list[str]:
    analysis = FOUND.analysis if analyzed else None
    return [column.title for column in layer_table(FOUND.report.layers, evidence, analysis).columns]


def test_all_is_shown_that_is_known() -> None:
    assert titles() == ALL


def test_a_column_without_values_is_left_out() -> None:
    assert titles(analyzed=False) == ALL[:6]
    assert titles(Evidence(Origin("")), analyzed=False) == ["Op", "Runs on"]


def test_cells_are_texts_and_what_they_are_sorted_by() -> None:
    table = layer_table(FOUND.report.layers, FOUND.evidence, FOUND.analysis)
    first, floating = table.rows[0], table.rows[3]
    assert [cell.text for cell in first.cells] == [
        "Conv",
        "integer",
        "uint8, int8 weight",
        "[?, 64, 56, 56]",
        "-0.0173 … 6.426",
        "0.0012 %",
        "40.0 dB",
        "44.0 dB",
        "60.0 dB",
        "1 k",
    ]
    assert [cell.key for cell in first.cells[-3:]] == [44.0, 60.0, 1000.0]
    assert (first.integer, first.reason, first.card) == (True, "", 1)
    assert first.notes == (Network().text,), "what the analysis found"
    assert floating.notes == (Network().text,), "a finding that says the reason again"
    assert replace(floating, finding="and more").notes == (Network().text, "and more")
    assert (floating.integer, floating.reason, floating.card) == (False, Network().text, 0)
    assert [cell.text for cell in floating.cells[4:6]] == ["", ""]
    assert [cell.key for cell in floating.cells[4:6]] == [LAST, LAST]


def test_rows_lead_to_the_cards_that_are_drawn() -> None:
    tensors = tuple(replace(tensor, ranges=()) for tensor in FOUND.evidence.tensors[:2])
    evidence = replace(FOUND.evidence, tensors=(*tensors, *FOUND.evidence.tensors[2:]))
    table = layer_table(FOUND.report.layers, evidence, None)
    assert [row.card for row in table.rows] == [0, 0, 1, 0, 3, 4, 5, 0]
    assert table.rows[0].cells[4].text == "-0.0173 … 6.426", "its range is known all the same"


def test_a_drop_of_the_metric_ranks_where_the_analysis_says_so() -> None:
    analysis = FOUND.analysis
    assert analysis is not None
    table = layer_table(FOUND.report.layers, FOUND.evidence, replace(analysis, order="metric"))
    assert table.rows[0].cells[ALL.index("Sensitivity")].text == "0.20 points"

"""Cards of tensors: histograms, and the ranges that methods choose."""

import re
from dataclasses import replace

import pytest

from ptq_cli.report.html.fact_rows import MethodRange
from ptq_cli.report.html.tensor_cards import HEIGHT, tensor_cards
from tests.pages import Network

FOUND = Network(12).page_input()
assert FOUND.analysis is not None
TENSOR = FOUND.evidence.tensors[0]


def _heights(bars: str) -> list[float]:
    return [HEIGHT - float(y) for y in re.findall(r"V([\d.]+)H", bars)]


def test_the_highest_bar_is_that_of_most_values_and_empty_ones_have_no_height() -> None:
    tensor = replace(TENSOR, counts=(0.0, 4.0, 8.0, 0.0))
    (card,) = tensor_cards([tensor])
    heights = _heights(card.bars)
    assert not card.is_log
    assert heights[0] == heights[3] == 0
    assert heights[2] == pytest.approx(2 * heights[1], abs=1)


def test_rare_values_are_seen_on_a_logarithmic_scale() -> None:
    (card,) = tensor_cards([replace(TENSOR, counts=(1e9, 1.0, 1.0, 1.0))])
    assert card.is_log
    assert min(_heights(card.bars)) >= 1


def test_a_range_far_beyond_the_values_does_not_squeeze_them() -> None:
    tensor = replace(TENSOR, low=0.0, high=1.0, chosen=MethodRange(method="", low=0.0, high=1000.0))
    (card,) = tensor_cards([tensor])
    end = max(float(x) for x in re.findall(r"H([\d.]+)", card.bars))
    assert end - card.chosen.low > (card.chosen.high - card.chosen.low) * 0.49


def test_the_methods_that_chose_the_range_of_the_file_are_told() -> None:
    (card,) = tensor_cards(FOUND.evidence.tensors[:1], FOUND.analysis.tensors)
    assert [span.method for span in card.spans if span.chosen] == ["percentile"]
    assert "SQNR: accumulated 48.00 dB" in card.facts
    assert (card.finding, card.remedy) == (Network().text, "--amax mse")
    assert len(tensor_cards([replace(TENSOR, counts=())])[0].bars) == 0

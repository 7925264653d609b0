"""From numbers to a cause and a flag."""

from dataclasses import replace

import pytest

from ptq_cli.analysis.causes import Finding, Use, activation_finding, layer_finding, weight_finding
from ptq_cli.evaluation.document.report_document import SaturatingLayer
from tests.each_case import each_case

GOOD = Use(sqnr_db=38.0, clip_share=0.1, clipped=0.0, used=0.9, imbalance=2.0, levels=256, readers=("fc",))
BAD = replace(GOOD, sqnr_db=20.0)


@each_case(
    "use, histograms, cause, remedy",
    [
        (replace(GOOD, used=0.01, imbalance=50.0), True, "", ""),
        (BAD, True, "", ""),
        (replace(BAD, used=0.1, better="entropy"), True, "outliers", "--amax entropy"),
        (replace(BAD, used=0.1), True, "outliers", "--exclude fc"),
        (replace(BAD, used=0.1), False, "outliers", "--method histogram --amax mse"),
        (replace(BAD, clip_share=0.8, used=0.1, better="max"), True, "clipping", "--amax max"),
        (replace(BAD, clip_share=0.8), True, "clipping", "--exclude fc"),
        (replace(BAD, imbalance=4.0), True, "channel imbalance", "--exclude fc"),
        (replace(BAD, imbalance=3.9), True, "", ""),
    ],
)
def test_activations(use: Use, histograms: bool, cause: str, remedy: str) -> None:
    found = activation_finding(use, histograms=histograms)
    assert (found.cause, found.remedy) == (cause, remedy)
    assert bool(found.finding) == bool(cause)


@each_case(
    "use, widened, cause, remedy",
    [
        (replace(GOOD, levels=15), 1.0, "", ""),
        (replace(BAD, levels=15), 0.0, "few steps", "--weight-bits 8"),
        (replace(BAD, levels=0), 0.0, "few steps", "--set weights.quantizer=scaled"),
        (replace(BAD, levels=127, bits=8), 0.0, "", ""),
        (replace(BAD, levels=15, bits=4, output_db=35.0), 0.0, "", ""),
        (replace(BAD, levels=15, bits=4, output_db=25.0), 0.0, "few steps", "--weight-bits 8"),
        (replace(BAD, levels=0, bits=4), 0.0, "few steps", "--exclude fc"),
        (BAD, 0.25, "bias overflow", "--exclude fc"),
        (replace(BAD, used=0.2, better="mse"), 0.0, "outliers", "--set amax.weight_method=mse"),
        (replace(BAD, used=0.2), 0.0, "outliers", "--exclude fc"),
        (replace(BAD, clip_share=0.9, better="max"), 0.0, "clipping", "--set amax.weight_method=max"),
        (replace(BAD, imbalance=9.0), 0.0, "channel imbalance", "--exclude fc"),
    ],
)
def test_weights(use: Use, widened: float, cause: str, remedy: str) -> None:
    found = weight_finding(use, widened=widened, quantizer="looked up")
    assert (found.cause, found.remedy) == (cause, remedy)


def test_a_layer_has_the_cause_of_its_worst_tensor() -> None:
    tensors = [
        (25.0, "x", Finding("outliers", "few are large", "--amax mse")),
        (12.0, "w", Finding("few steps", "its integers have 15 values", "--weight-bits 8")),
        (5.0, "y", Finding()),
    ]
    found = layer_finding("fc", tensors, not_fused="", gain_db=9.0)
    assert (found.cause, found.remedy) == ("few steps", "--weight-bits 8")
    assert found.finding == "'w': its integers have 15 values"


def test_a_layer_that_gains_nothing_by_integers_is_told_first() -> None:
    tensors = [(12.0, "w", Finding("few steps", "…", "--weight-bits 8"))]
    found = layer_finding("/my fc", tensors, not_fused="no kernel", gain_db=None)
    assert (found.cause, found.remedy) == ("not fused", "--exclude '/my fc'")
    assert found.finding.endswith("no kernel")


@pytest.mark.parametrize(("gain", "remedy"), [(0.9, ""), (1.0, "--exclude fc"), (None, "")])
def test_a_layer_without_a_cause_may_still_be_worth_leaving(gain: float | None, remedy: str) -> None:
    found = layer_finding("fc", [], not_fused="", gain_db=gain)
    assert (found.cause, found.remedy) == ("", remedy)


def test_a_sum_that_saturates_is_the_first_cause_and_no_option_helps() -> None:
    layer = SaturatingLayer(name="fc", op="Gemm", pairs=40, of_pairs=576, channels=19, of_channels=32)
    tensors = [(12.0, "x", Finding("outliers", "wide", "--amax mse"))]
    found = layer_finding("fc", tensors, not_fused="no kernel", gain_db=9.0, saturating=layer)
    assert (found.cause, found.remedy) == ("saturation", "")
    assert found.finding == (
        "40 of 576 pairs of its weights can saturate on this processor, which has no VNNI"
    )

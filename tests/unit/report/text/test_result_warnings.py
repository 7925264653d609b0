"""What is said of a result that is large, computed in float, or inexact."""

import pytest

from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.document.report_document import LayerEntry, SaturatingLayer, Saturation
from ptq_cli.report.text.result_warnings import result_warnings
from tests.measured import measurement

LAYERS = [
    LayerEntry("dense", "MatMul", True, ""),
    LayerEntry("lstm", "LSTM", False, "its ranges are found at each run"),
    LayerEntry("lstm2", "LSTM", False, "its ranges are found at each run"),
    LayerEntry("conv", "Conv", False, "no room"),
]


def sqnr(value: float, name: str = "sqnr_db") -> Measurement:
    return measurement(
        name, value, unit="decibel", needs_labels=False, higher_is_better=True, output="scores"
    )


def test_a_good_result_has_none():
    assert result_warnings((400, 100), LAYERS, {"dense": 50, "lstm": 50}, [sqnr(15.0)]) == ()


def test_reasons_are_summed_by_their_share():
    work = {"dense": 20, "lstm": 30, "lstm2": 40, "conv": 10}
    (found,) = result_warnings((400, 100), LAYERS, work)
    assert (found.code, found.message) == (
        "few_integers",
        "20 % of the multiply-accumulates are in integers; in float: "
        "70 % LSTM: its ranges are found at each run; 10 % Conv: no room",
    )
    assert found.hints == ("ptq inspect shows the reason of each layer",)
    layers = [*LAYERS[:3], LayerEntry("conv", "Conv", False, "quantizing it saves nothing")]
    (found,) = result_warnings((400, 100), layers, work)
    assert "--prefer size" in found.hints[0]


def test_layers_that_were_placed_by_latency_have_one_reason_and_another_hint():
    reasons = (f"faster in float here: {time} µs of 66 µs" for time in (41, 42))
    layers = [LayerEntry(f"conv{index}", "Conv", False, reason) for index, reason in enumerate(reasons)]
    (found,) = result_warnings((400, 100), layers, {"conv0": 30, "conv1": 70})
    assert found.message.endswith("in float: 100 % Conv: faster in float here")
    assert found.hints == (
        "ptq export --prefer accuracy quantizes them, --prefer size every layer that the target can",
    )


def test_a_file_that_grew_says_so_even_if_all_is_in_integers():
    (found,) = result_warnings((100, 128), LAYERS[:1], {"dense": 50})
    assert (found.code, found.message) == (
        "larger_than_float",
        "the quantized file is larger than the float one: 128 bytes, 128.0 % of float: "
        "its weights are small beside their Q/DQ nodes",
    )


def test_an_output_below_15_db_is_named_with_what_to_try():
    found = result_warnings((400, 100), LAYERS[:1], {"dense": 1}, [sqnr(31.0), sqnr(14.2, "sqnr_db[scores]")])
    assert [item.code for item in found] == ["low_sqnr"]
    assert found[0].message == "the SQNR of output 'scores' is 14.20 dB, below 15.00 dB"
    assert [hint.split(" ")[:2] for hint in found[0].hints] == [["ptq", "analyze"]] + 2 * [["ptq", "export"]]


def test_where_sums_saturate_no_option_is_proposed_for_a_low_sqnr():
    layer = SaturatingLayer(name="dense", op="MatMul", pairs=3, of_pairs=8, channels=1, of_channels=2)
    saturation = Saturation(26, (layer,))
    found = result_warnings((400, 100), LAYERS[:1], {"dense": 1}, [sqnr(14.2)], saturation)
    assert [item.code for item in found] == ["saturating_sums", "low_sqnr"]
    assert found[0].message == (
        "1 of 26 layers can saturate on this processor, which has no VNNI: "
        "the model may compute other numbers here than elsewhere"
    )
    hints = {hint for item in found for hint in item.hints}
    assert all("repair" in hint or "VNNI" in hint for hint in hints), hints


@pytest.mark.parametrize("work", [{}, {"dense": None}, {"dense": 0}], ids=str)
def test_without_known_work_nothing_is_said_of_it(work):
    assert result_warnings((400, 100), LAYERS, work) == ()


def test_what_the_user_excluded_is_not_suggested_again():
    layers = [LayerEntry("conv", "Conv", False, "kept in float: exclude match = 'conv'")]
    (found,) = result_warnings((400, 100), layers, {"conv": 5})
    assert found.hints == ("ptq export without --exclude and --set override quantizes more layers",)

"""The drop follows from the two values."""

import pytest

from ptq_cli.evaluation.document.measurement import Measurement


@pytest.mark.parametrize(
    ("of_float", "of_quantized", "drop"), [(0.75, 0.5, 0.25), (0.5, 0.75, -0.25)], ids=["loss", "gain"]
)
def test_drop_is_float_minus_quantized(of_float: float, of_quantized: float, drop: float) -> None:
    measurement = Measurement(
        name="top1",
        unit="share",
        needs_labels=True,
        higher_is_better=True,
        quantized_value=of_quantized,
        float_value=of_float,
    )
    assert measurement.drop == drop


def test_a_comparison_has_no_drop() -> None:
    assert (
        Measurement(
            name="sqnr_db", unit="decibel", needs_labels=False, higher_is_better=True, quantized_value=30.0
        ).drop
        is None
    )

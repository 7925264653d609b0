"""How a difference between two models is told."""

import numpy as np
import pytest

from ptq_cli.core.errors import ParityError
from ptq_cli.models.parity import require_parity


def test_the_difference_is_relative_to_the_largest_value():
    wanted, found = np.array([0.001, 100.0]), np.array([0.051, 100.0])
    assert require_parity([wanted], [found], ["y"], "m.pt") == pytest.approx(5e-4)


def test_too_large_a_difference_says_how_large_and_where():
    with pytest.raises(ParityError) as caught:
        require_parity([np.ones(2), np.full(2, 4.0)], [np.ones(2), np.array([4.0, 4.1])], ["a", "b"], "m.pt")
    assert caught.value.message == (
        "'m.pt': output 'b' of the ONNX model differs from PyTorch's by 0.1 "
        "(2.50% of its largest value; the limit is 0.1%)"
    )
    assert caught.value.code == "PTQ-MODEL-006"
    assert "make the model deterministic (no dropout in forward)" in caught.value.hint


@pytest.mark.parametrize("found", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_what_is_not_finite_on_one_side_only_is_a_difference(found):
    with pytest.raises(ParityError, match="output 'y' of the ONNX model differs"):
        require_parity([np.array([1.0, 2.0])], [np.array([1.0, found])], ["y"], "m.pt")


def test_nan_in_the_source_is_no_difference_and_its_hint_is_about_nan():
    values = np.array([1.0, np.nan])
    with pytest.raises(ParityError) as caught:
        require_parity([values], [values], ["y"], "m.pt")
    assert caught.value.message == (
        "'m.pt': output 'y' of PyTorch holds NaN, so that the ONNX model cannot be compared with it"
    )
    assert caught.value.hint.startswith("check the model's weights and the data for NaN")
    assert require_parity([values], [values], ["y"], "m.pt", allow_nan=True) == 0.0


def test_another_shape_is_named():
    with pytest.raises(
        ParityError, match=r"output 'y' is \[2, 3\] in PyTorch and \[3, 2\] in ONNX"
    ) as caught:
        require_parity([np.ones((2, 3))], [np.ones((3, 2))], ["y"], "m.pt")
    assert "--set data.batch_size" in caught.value.hint


def test_another_number_of_outputs_is_told():
    with pytest.raises(ParityError, match=r"'m\.pt' has 2 outputs in PyTorch and 1 in ONNX"):
        require_parity([np.ones(1), np.ones(1)], [np.ones(1)], ["y"], "m.pt")


def test_integers_bools_and_empty_outputs_are_compared():
    outputs = [np.array([3, -1]), np.array([True, False]), np.zeros((0, 4))]
    assert require_parity(outputs, [item.copy() for item in outputs], ["a", "b", "c"], "m.pt") == 0.0
    with pytest.raises(ParityError, match="output 'b'"):
        require_parity(outputs, [outputs[0], ~outputs[1], outputs[2]], ["a", "b", "c"], "m.pt")

"""How a difference between two models is told."""

import logging
import warnings

import numpy as np
import pytest
import torch

from ptq_cli.core.errors import ParityError
from ptq_cli.models.loading.detect import ModelKind
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.parity import require_parity
from ptq_cli.models.quiet_export import one_thread, quiet_exporter


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
    assert "--batch-size" in caught.value.hint


def test_another_number_of_outputs_is_told():
    with pytest.raises(ParityError, match=r"'m\.pt' has 2 outputs in PyTorch and 1 in ONNX"):
        require_parity([np.ones(1), np.ones(1)], [np.ones(1)], ["y"], "m.pt")


def test_integers_bools_and_empty_outputs_are_compared():
    outputs = [np.array([3, -1]), np.array([True, False]), np.zeros((0, 4))]
    assert require_parity(outputs, [item.copy() for item in outputs], ["a", "b", "c"], "m.pt") == 0.0
    with pytest.raises(ParityError, match="output 'b'"):
        require_parity(outputs, [outputs[0], ~outputs[1], outputs[2]], ["a", "b", "c"], "m.pt")


# The exporters are silenced, and nothing else is.


def test_nothing_is_heard_inside(capfd, caplog, recwarn):
    with quiet_exporter():
        print("Applied 3 rules")
        warnings.warn("old operator", UserWarning, stacklevel=1)
        logging.getLogger("torch.onnx").error("no such kernel")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not recwarn.list


def test_everything_is_heard_again_behind(capfd, caplog):
    with pytest.raises(ValueError, match="wrong"), quiet_exporter():
        raise ValueError("wrong")
    print("heard")
    logging.getLogger("torch.onnx").error("heard too")
    assert capfd.readouterr().out == "heard\n"
    assert [record.message for record in caplog.records] == ["heard too"]
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", UserWarning, stacklevel=1)


# PyTorch works on one thread while ptq uses it, and as before afterwards.


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_restored_whatever_happens():
    with pytest.raises(KeyError), one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 2


class Telling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.threads = set()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        self.threads.add(torch.get_num_threads())
        return self.layer(x)


@pytest.mark.usefixtures("two_threads")
def test_a_module_is_run_and_exported_on_one_thread(tmp_path):
    module = Telling().eval()
    source = ModuleSource(SourceFile(tmp_path / "m.pt", ModelKind.CHECKPOINT, "0" * 64), module)
    example = {"x": np.ones((2, 3), np.float32)}
    source.run(example)
    source.to_onnx(example)
    assert module.threads == {1}
    assert torch.get_num_threads() == 2

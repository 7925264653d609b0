"""The exporters are silenced, and nothing else is; PyTorch works on one thread while ptq uses it."""

import logging
import warnings

import numpy as np
import pytest
import torch

from ptq_cli.models.loading.detect import ModelKind
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.quiet_export import one_thread, quiet_exporter


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

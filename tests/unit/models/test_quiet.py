"""The exporters are silenced, and nothing else is."""

import logging
import warnings

import pytest

from ptq_cli.models.parity import quiet_exporter


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

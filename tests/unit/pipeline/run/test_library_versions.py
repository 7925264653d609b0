"""The versions in a report, whichever build of ONNX Runtime is installed."""

from importlib.metadata import PackageNotFoundError, version

import pytest

import ptq_cli
from ptq_cli.pipeline.setup import output_checks as versions
from ptq_cli.pipeline.setup.output_checks import DISTRIBUTIONS, library_versions


def without(*missing):
    def find(name):
        if name in missing:
            raise PackageNotFoundError(name)
        return "1.31.0" if name == "onnxruntime-gpu" else version(name)

    return find


def test_the_build_for_gpus_stands_under_the_usual_name(monkeypatch):
    monkeypatch.setattr(versions, "version", without("onnxruntime"))

    found = library_versions()

    assert found["onnxruntime"] == "1.31.0" and list(found) == ["ptq-cli", *DISTRIBUTIONS]
    assert found["torch"] == version("torch") and found["ptq-cli"] == ptq_cli.__version__


def test_a_library_that_is_not_installed_is_no_version(monkeypatch):
    monkeypatch.setattr(versions, "version", without("onnx"))

    with pytest.raises(PackageNotFoundError):
        library_versions()

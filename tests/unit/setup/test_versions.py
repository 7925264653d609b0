"""Versions of libraries, with what stands in for one and what may be missing."""

from importlib.metadata import PackageNotFoundError, version

import pytest

import ptq_cli
from ptq_cli.setup import versions
from ptq_cli.setup.versions import DISTRIBUTIONS, FOR_MODULES, library_versions


def without(*missing):
    def find(name):
        if name in missing:
            raise PackageNotFoundError(name)
        return "1.31.0" if name == "onnxruntime-gpu" else version(name)

    return find


def test_the_build_for_gpus_stands_under_the_usual_name(monkeypatch):
    monkeypatch.setattr(versions, "version", without("onnxruntime"))

    found = library_versions()

    assert found["onnxruntime"] == "1.31.0" and found.keys() >= {"ptq-cli", *DISTRIBUTIONS} - FOR_MODULES
    assert found["onnx"] == version("onnx") and found["ptq-cli"] == ptq_cli.__version__


def test_versions_of_an_onnx_file_need_no_torch(monkeypatch):
    monkeypatch.setattr(versions, "version", without("torch", "torchmetrics"))

    assert list(library_versions()) == ["ptq-cli", *(name for name in DISTRIBUTIONS if "torch" not in name)]


def test_a_library_that_is_not_installed_is_no_version(monkeypatch):
    monkeypatch.setattr(versions, "version", without("onnx"))

    with pytest.raises(PackageNotFoundError):
        library_versions()

"""Well-known architectures, small and with weights from a seed, through all of ptq with default settings."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.architectures.measure import measure
from tests.architectures.registry import ARCHITECTURES

LEAST_DB = 20.0
# One of each kind of layers; `make test-nightly` runs the others, too.
BY_DAY = {"BERT", "LSTM tagger", "ResNet, basic", "U-Net"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DAY else [pytest.mark.nightly]) for name in ARCHITECTURES],
)
def test_it_is_exported_quantized_and_close_to_the_float_model(name: str, tmp_path: Path):
    # One test, because one export takes seconds, and the workers of a parallel run share nothing.
    wanted = ARCHITECTURES[name]
    found = measure(wanted, tmp_path)
    onnx.checker.check_model(onnx.load_from_string(found.content), full_check=True)
    assert {layer.op for layer in found.layers if not layer.quantized} == set(wanted.floats.split())
    assert [layer.name for layer in found.layers if not layer.quantized and not layer.reason] == []
    assert found.integer_share >= wanted.least_share
    assert found.sqnr_db >= LEAST_DB
    for written, fast in zip(found.outputs[False], found.outputs[True], strict=True):
        assert np.isfinite(written).all()
        assert np.max(np.abs(written - fast)) <= 0.05 * np.max(np.abs(written))

"""What a quantized file says of where it came from, against the calibration at hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ptq_cli.collectors.calibration_file import Calibration, statistics_digest
from ptq_cli.core.errors import InputFileError, StaleCalibrationError
from ptq_cli.pipeline.exported_file import amax_summary, require_origin, unusual_layers
from ptq_cli.qdq.read.quantized_file import MetadataKey
from tests.each_case import each_case

CALIBRATION = cast(Calibration, SimpleNamespace(provenance=SimpleNamespace(model="abc"), statistics={}))
ORIGIN = {MetadataKey.FLOAT_SHA256: "abc", MetadataKey.STATISTICS_SHA256: statistics_digest({})}


@each_case(
    "changes, error, says",
    [
        (
            {MetadataKey.FLOAT_SHA256: "other"},
            StaleCalibrationError,
            "was not made from this run's float model",
        ),
        ({MetadataKey.STATISTICS_SHA256: "other"}, StaleCalibrationError, "from an earlier calibration"),
    ],
)
def test_a_file_of_another_run_is_refused(changes: dict[str, str], error: Any, says: str) -> None:
    require_origin(ORIGIN, CALIBRATION, Path("m.onnx"))
    with pytest.raises(error, match=says):
        require_origin(ORIGIN | changes, CALIBRATION, Path("m.onnx"))
    with pytest.raises(InputFileError, match="was not written by ptq export"):
        require_origin({}, CALIBRATION, Path("m.onnx"))


def test_layers_that_run_elsewhere_come_with_their_reasons() -> None:
    origin = {MetadataKey.LAYERS: '{"too noisy": ["a", "b"], "": ["c"]}'}
    assert unusual_layers(origin, "m") == {"a": "too noisy", "b": "too noisy", "c": ""}
    assert unusual_layers({}, "m") == {}
    with pytest.raises(InputFileError, match="damaged metadata"):
        unusual_layers({MetadataKey.LAYERS: "[1]"}, "m")


def test_the_method_of_ranges_is_told_with_what_differs() -> None:
    found = amax_summary({MetadataKey.AMAX_METHOD: "percentile", MetadataKey.AMAX_PERCENTILE: "99.9"})
    assert (found.method, found.settings) == ("percentile", {"percentile": 99.9})
    other = amax_summary(
        {MetadataKey.AMAX_METHOD: "max", MetadataKey.WEIGHT_AMAX: "mse", MetadataKey.QUANTIZERS: "step"}
    )
    assert other.method == "max, weights by mse; step"

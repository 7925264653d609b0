"""A folder with a one-layer ONNX model and data, which is the current one, and a run in it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.pipeline.calibration.run_calibrate import run_calibrate
from ptq_cli.pipeline.exporting.run_export import run_export
from ptq_cli.pipeline.resolve import Request
from ptq_cli.pipeline.run_directory import RunDirectory

SETTINGS = {"data": "calib.npz", "eval_data": "calib.npz"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(random.standard_normal((6, 4)).astype(np.float32), "fc.weight")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "fc.weight"], ["scores"], "fc", transB=1)],
        "one",
        [value("x", TensorProto.FLOAT, ["batch", 4])],
        [value("scores", TensorProto.FLOAT, ["batch", 6])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    x = random.standard_normal((10, 4)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x, label=random.integers(0, 6, 10))
    return tmp_path


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    """The run directory, where nothing is yet."""
    return RunDirectory(Path("ptq-run"))


@pytest.fixture
def request_with() -> Callable[..., Request]:
    """Make a request for the model, with further settings by the names of their flags."""
    return lambda **settings: Request(settings={**SETTINGS, **settings}, model=Path("model.onnx"))


@pytest.fixture
def finished(run: RunDirectory, request_with: Callable[..., Request]) -> RunDirectory:
    """The run directory, calibrated and exported."""
    run_calibrate(request_with(), run)
    run_export(request_with(), run)
    return run

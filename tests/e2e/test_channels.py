"""``activation_axis``: each channel's statistics, the same however the calibration is shared out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ptq_cli
from tests.e2e.conftest import statistics_in
from tests.unit.plan.graphs import build, serialized

CALIBRATE = (
    "calibrate model.onnx --data calib.npz --set calibration.activation_axis.relu=1 "
    "--set calibration.activation_axis.x=-3"
)


def test_blocks_of_channels_are_put_in_order(folder: Path, ptq: Any) -> None:
    """With 16 channels ONNX Runtime leaves them in blocks on x86-64, where its convolutions are so."""
    random = np.random.default_rng(3)
    scale = 2.0 ** np.arange(16, dtype=np.float32)
    weight = random.standard_normal((16, 3, 3, 3)).astype(np.float32) * scale[:, None, None, None]
    text = """(float[n,3,8,8] x) => (float[n,16,4,4] c) <float[16,3,3,3] w, float[16,16,3,3] v> {
        a = Conv(x, w) b = Relu(a) c = Conv(b, v) }"""
    (folder / "blocks.onnx").write_bytes(serialized(build(text, constants={"w": weight})))
    calibrate = "calibrate blocks.onnx --data calib.npz --set 'calibration.activation_axis.*=1' --run"
    assert ptq(f"{calibrate} fast").status == 0
    # Below a limit of memory nothing is left in blocks.
    assert ptq(f"{calibrate} small --set runtime.max_memory=8GiB").status == 0
    found, plain = (statistics_in(folder, run)["b"].channels for run in ("fast", "small"))
    np.testing.assert_allclose(found.maximum, plain.maximum, rtol=1e-4)
    assert (np.diff(found.maximum) > 0).sum() >= 12  # Each is about twice the one before.


def test_export_stays_per_tensor(folder: Path, ptq: Any) -> None:
    assert ptq(CALIBRATE).status == 0
    assert ptq("export").status == 0

    scales = {
        tensor.name: list(tensor.dims)
        for tensor in onnx.load(folder / "ptq-run" / "model.int8.onnx").graph.initializer
        if tensor.name.endswith("relu.scale")
    }
    assert scales == {"relu.scale": []}


def test_show_and_explain_draw_them(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert ptq(CALIBRATE).status == 0

    shown, explained = ptq("inspect"), ptq("inspect --tensor relu")

    assert "largest magnitude of each channel; imbalance: largest divided by median" in shown.out
    assert "channels:   8 along axis 1, amax by percentile: " in explained.out
    assert "imbalance:  " in explained.out and "share of tensor" in explained.out
    assert (
        "ort-cpu quantizes activations per tensor: ptq export gives all channels one scale" in explained.out
    )
    listed = json.loads(ptq("inspect --json").out)["tensors"]
    by_name = {tensor["name"]: tensor["measured_channels"] for tensor in listed}
    assert by_name["relu"]["axis"] == 1 and len(by_name["relu"]["maximum"]) == 8
    assert [name for name, channels in by_name.items() if channels is None] == [
        name for name in by_name if name not in ("relu", "x")
    ]


def test_python_returns_them(folder: Path, ptq: Any) -> None:
    result = ptq_cli.calibrate("model.onnx", data="calib.npz", activation_axis={"relu": 1})
    assert result.channels == {"relu": 8}

    channels = ptq_cli.explain("relu").tensor.channels

    assert channels is not None and channels.statistics.size == len(channels.decisions) == 8
    assert channels.amax.shape == (8,) and channels.dead == ()
    shown = {tensor.name: tensor.channels for tensor in ptq_cli.show_calibration().tensors}
    assert shown["x"] is None and shown["relu"] == channels


def test_recipe_asks_for_them_and_a_change_is_noticed(folder: Path, ptq: Any) -> None:
    (folder / "ptq.toml").write_text(
        "[model]\npath = 'model.onnx'\n[calibration]\ndata = 'calib.npz'\n"
        "[calibration.activation_axis]\n'r*' = 2\nrelu = 1\n"
    )
    assert ptq("calibrate --set calibration.activation_axis.x=1").status == 0
    found = statistics_in(folder)
    assert found["relu"].channels.axis == 1 and found["x"].channels.axis == 1
    assert ptq("export").status == 0

    text = (folder / "ptq.toml").read_text()
    (folder / "ptq.toml").write_text(text.replace("relu = 1", "relu = 3"))

    outcome = ptq("export")
    assert outcome.status == 2 and "PTQ-CALIB-003" in outcome.err
    assert "'calibration.activation_axis' was " in outcome.err


def test_a_tensor_that_is_not_there_is_refused(refuse: Any) -> None:
    words = "calibrate model.onnx --data calib.npz --run new --set calibration.activation_axis.relv=1"
    refuse(words, "PTQ-RECIPE-003", "'relv' matches no activation that is quantized (did you mean 'relu'?)")

"""``activation_axis``: each channel's statistics, the same however the calibration is shared out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ptq_cli
from ptq_cli.amax.method_registry import METHODS
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.progress import Progress

CALIBRATE = (
    "calibrate model.onnx --data calib.npz --set calibration.activation_axis.relu=1 "
    "--set calibration.activation_axis.x=-3"
)


def statistics_in(folder: Path, run: str = "ptq-run") -> dict[str, Any]:
    return dict(load_calibration(folder / run / "calibration.safetensors").statistics)


def relu_of(folder: Path) -> np.ndarray:
    from ptq_cli.runtime.session import Session

    proto = onnx.load(folder / "model.onnx")
    proto.graph.output.append(helper.make_tensor_value_info("relu", TensorProto.FLOAT, None))
    del proto.graph.output[0]
    with np.load(folder / "calib.npz") as arrays:
        (found,) = Session(proto.SerializeToString(), threads=1).run({"x": arrays["x"]})
    return found


def test_each_channel_is_that_of_its_values(folder: Path, ptq: Any) -> None:
    outcome = ptq(CALIBRATE)
    assert outcome.status == 0
    assert "measured 11 channels of 2 tensors; ptq explain shows them" in outcome.out

    found = statistics_in(folder)

    relu = relu_of(folder)
    channels = found["relu"].channels
    assert (channels.axis, channels.size) == (1, 8)
    np.testing.assert_allclose(channels.maximum, relu.max(axis=(0, 2, 3)), rtol=1e-6)
    assert channels.count.tolist() == [relu[:, 0].size] * 8
    assert channels.zeros.tolist() == np.count_nonzero(relu == 0, axis=(0, 2, 3)).tolist()
    assert found["x"].channels.axis == 1 and found["x"].channels.size == 3
    # What is kept of the tensor as a whole is what is kept without.
    assert ptq("calibrate model.onnx --data calib.npz --run plain").status == 0
    plain = statistics_in(folder, "plain")
    assert plain["relu"].channels is None and plain["relu"].histogram == found["relu"].histogram


def test_the_same_bytes_however_it_is_cut(folder: Path, ptq: Any) -> None:
    assert ptq(CALIBRATE).status == 0
    wanted = (folder / "ptq-run" / "calibration.safetensors").read_bytes()

    assert ptq(f"{CALIBRATE} --batch-size 5 --threads 1 --set runtime.max_memory=8GiB --run cut").status == 0
    assert ptq(f"{CALIBRATE} --batch-size 4 --shard 1/2 --run one").status == 0
    assert ptq(f"{CALIBRATE} --batch-size 4 --shard 2/2 --run two").status == 0
    assert ptq("merge one two --run both").status == 0

    assert statistics_in(folder, "cut") == statistics_in(folder)
    assert (folder / "both" / "calibration.safetensors").read_bytes() == wanted


def test_blocks_of_channels_are_put_in_order(folder: Path, ptq: Any) -> None:
    """With 16 channels ONNX Runtime leaves them in blocks on x86-64, where its convolutions are so."""
    random = np.random.default_rng(3)
    scale = 2.0 ** np.arange(16, dtype=np.float32)
    weight = random.standard_normal((16, 3, 3, 3)).astype(np.float32) * scale[:, None, None, None]
    second = random.standard_normal((16, 16, 3, 3)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], "a"),
            helper.make_node("Relu", ["a"], ["b"], "b"),
            helper.make_node("Conv", ["b", "v"], ["c"], "c"),
        ],
        "blocks",
        [value("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [value("c", TensorProto.FLOAT, ["n", 16, 4, 4])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(second, "v")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(proto, folder / "blocks.onnx")

    assert (
        ptq(
            "calibrate blocks.onnx --data calib.npz --set 'calibration.activation_axis.*=1' --run fast"
        ).status
        == 0
    )
    small = "--set runtime.max_memory=8GiB --run small"  # Below a limit of memory nothing is left in blocks.
    assert (
        ptq(f"calibrate blocks.onnx --data calib.npz --set 'calibration.activation_axis.*=1' {small}").status
        == 0
    )

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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_decides_each_channel(folder: Path, ptq: Any, method: str) -> None:
    assert ptq(CALIBRATE).status == 0

    outcome = ptq(f"explain relu --amax {method} --json")

    found = json.loads(outcome.out)["channels"]
    assert (found["axis"], found["size"], found["method"]) == (1, 8, method)
    assert len(found["amax"]) == len(found["scale"]) == len(found["zero_point"]) == 8
    assert all(0 < amax <= high for amax, high in zip(found["amax"], found["maximum"], strict=True))
    assert found["imbalance"] == pytest.approx(max(found["amax"]) / np.median(found["amax"]))


def test_show_and_explain_draw_them(folder: Path, ptq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert ptq(CALIBRATE).status == 0

    shown, explained = ptq("calibration show"), ptq("explain relu")

    assert "largest magnitude of each channel; imbalance: largest divided by median" in shown.out
    assert "channels:   8 along axis 1, amax by percentile: " in explained.out
    assert "imbalance:  " in explained.out and "share of tensor" in explained.out
    assert (
        "ort-cpu quantizes activations per tensor: ptq export gives all channels one scale" in explained.out
    )
    listed = json.loads(ptq("calibration show --json").out)["tensors"]
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


def test_dead_channels_are_named(folder: Path, ptq: Any) -> None:
    proto = onnx.load(folder / "model.onnx")
    weight, bias = (numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer[:2])
    weight[[2, 5]], bias[[2, 5]] = 0, 0
    for tensor, array in zip(proto.graph.initializer, (weight, bias), strict=False):
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, folder / "dead.onnx")
    assert ptq("calibrate dead.onnx --data calib.npz --set calibration.activation_axis.relu=1").status == 0

    assert "dead:       2, 5: 0 in every sample" in ptq("explain relu").out
    found = json.loads(ptq("explain relu --json").out)["channels"]
    assert found["dead"] == [2, 5] and found["amax"][2] == 0 and found["scale"][5] == 1


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


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("relv=1", "PTQ-RECIPE-003", "'relv' matches no activation that is quantized (did you mean 'relu'?)"),
        ("rel.*=1", "PTQ-RECIPE-003", "activation_axis 'rel.*' matches no activation that is quantized"),
        ("relu=4", "PTQ-CALIB-006", "tensor 'relu' of shape (?, 8, 6, 6) has no axis 4"),
        ("relu=-5", "PTQ-CALIB-006", "tensor 'relu' of shape (?, 8, 6, 6) has no axis -5"),
        ("x=-4", "PTQ-CALIB-006", "axis -4 of tensor 'x' holds its samples, not its channels"),
        ("relu", "PTQ-USAGE-001", "is not of the form KEY=VALUE"),
        (
            "relu=one",
            "PTQ-RECIPE-003",
            "'calibration.activation_axis.relu' is 'one', expected a whole number",
        ),
        ("=1", "PTQ-RECIPE-003", "'calibration.activation_axis' is 1, expected a table"),
        (
            "r*=1 --set 'calibration.activation_axis.*u=2'",
            "PTQ-CALIB-006",
            "'r*' asks for axis 1 of tensor 'relu', '*u' for axis 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, refuse: Any, flags: str, code: str, message: str) -> None:
    refuse(
        f"calibrate model.onnx --data calib.npz --run new --set calibration.activation_axis.{flags}",
        code,
        message,
    )


def test_axis_whose_length_differs_between_batches_is_refused(folder: Path, refuse: Any) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "sequence",
        [value("x", TensorProto.FLOAT, ["n", "time", 4])],
        [value("y", TensorProto.FLOAT, ["n", "time", 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(proto, folder / "sequence.onnx")
    (folder / "texts.py").write_text(
        "import numpy as np\n\n\ndef batches():\n    for length in (5, 7):\n"
        "        yield {'x': np.ones((2, length, 4), np.float32)}\n"
    )

    refuse(
        "calibrate sequence.onnx --data texts.py:batches --run new --set calibration.activation_axis.x=1",
        "PTQ-CALIB-006",
        "axis 1 of tensor 'x' had 5 channels and now has 7",
    )


def test_a_calibration_that_was_ended_continues(folder: Path, ptq: Any) -> None:
    settings: dict[str, Any] = {"data": "calib.npz", "batch_size": 2, "activation_axis": {"*": -1, "relu": 1}}

    def stop(progress: Progress) -> None:
        if progress.stage == "calibrate" and progress.done >= 8:
            raise KeyboardInterrupt

    ptq_cli.calibrate("model.onnx", run="whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        ptq_cli.calibrate("model.onnx", run="ended", checkpoint_every=0.0, progress=stop, **settings)
    told: list[Progress] = []
    ptq_cli.calibrate("model.onnx", run="ended", progress=told.append, **settings)

    assert any("continuing an earlier calibration after 6 samples" in step.note for step in told)
    assert statistics_in(folder, "ended") == statistics_in(folder, "whole")


def test_flags_may_be_given_in_any_order(folder: Path, ptq: Any) -> None:
    flags = "--set calibration.activation_axis.x=1 --set calibration.activation_axis.relu=1"
    assert ptq(f"calibrate model.onnx --data calib.npz {flags}").status == 0

    assert ptq("export").status == 0

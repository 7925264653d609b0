"""Values, batches and lengths that are rare or not finite: no crash, and the numbers are of the data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.collectors.tensor_statistics import NonFinite
from tests.e2e.conftest import statistics_in
from tests.unit.plan.graphs import build, serialized

LARGEST = float(np.finfo(np.float32).max)
RANDOM = np.random.default_rng(31)
X = RANDOM.normal(size=(12, 3, 8, 8)).astype(np.float32)
METHODS = ("max", "percentile", "entropy", "mse")
CALIBRATE = "calibrate model.onnx --data x.npz --set data.batch_size=4 --run run"


def zero_at_first() -> np.ndarray:
    x = X.copy()
    x[:4] = 0
    return x


def huge() -> np.ndarray:
    """Beyond 3e38 on both sides: the range from one end to the other is no float32."""
    x = X / np.abs(X).max() * np.float32(3.3e38)
    x[0, 0, 0, :2] = LARGEST, -LARGEST
    return x.astype(np.float32)


VALUES = {
    "all zero at first": zero_at_first(),
    "all zero": X * 0,
    "constant": np.full_like(X, 0.75),
    "negative constant": np.full_like(X, -0.75),
    "faint": (X * np.float32(1e-12)).astype(np.float32),
    "denormal": (X * np.float32(1e-40)).astype(np.float32),
    "denormal beside normal": np.where(X > 0, X, X * np.float32(1e-40)).astype(np.float32),
    "beyond 3e38": huge(),
}


LIGHT = """(float[n,3,8,8] x) => (float[n,5] y) <float[8,3,3,3] w, float[5,8] g> {
    [conv] c = Conv(x, w) [pool] p = GlobalAveragePool(c) [flatten] f = Flatten(p)
    [fc] y = Gemm<transB=1>(f, g) }"""


@pytest.fixture
def light(folder):
    """The folder with a model whose weights are so small that huge inputs do not overflow."""
    random = np.random.default_rng(3)
    shapes = {"w": (8, 3, 3, 3), "g": (5, 8)}
    weights = {name: (random.normal(size=shape) * 1e-3).astype(np.float32) for name, shape in shapes.items()}
    (folder / "model.onnx").write_bytes(serialized(build(LIGHT, constants=weights)))
    return folder


@pytest.mark.parametrize("x", VALUES.values(), ids=VALUES.keys())
def test_ranges_are_those_of_the_values_whatever_they_are(light: Path, ptq: Any, x: np.ndarray) -> None:
    np.savez(light / "x.npz", x=x)
    outcome = ptq(CALIBRATE)
    assert outcome.status == 0
    found = load_calibration(light / "run/calibration.safetensors").statistics["x"]
    assert (found.low, found.high) == (x.min(), x.max())
    assert (found.count, found.zeros) == (x.size, np.count_nonzero(x == 0))
    assert ("note: 'x' was 0 in every sample" in outcome.out) == (not x.any())
    assert ("note: 'x' was at most 2^-110" in outcome.out) == (0 < np.abs(x).max() <= 2.0**-110)
    for method in METHODS:
        assert ptq(f"export --run run --amax {method}").status == 0
        scale, zero_point = input_parameters(light / "run/model_int8.onnx")
        assert np.isfinite(scale) and scale > 0
        if np.abs(x).max() <= 2.0**-110:
            assert scale == 1.0
            continue
        low, high = -scale * zero_point, scale * (255 - zero_point)
        assert low <= 0 <= high
        if method == "max":
            np.testing.assert_allclose([low, high], [min(found.low, 0), max(found.high, 0)], atol=scale)


def input_parameters(path: Path) -> tuple[float, int]:
    model = onnx.load(path)
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    node = next(
        node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x"
    )
    return float(constants[node.input[1]]), int(constants[node.input[2]])


def test_the_report_of_huge_values_is_finite(light, ptq):
    np.savez(light / "x.npz", x=huge())
    assert ptq(CALIBRATE).status == 0
    for method in METHODS:
        assert ptq(f"export --run run --amax {method}").status == 0
        assert ptq("evaluate --run run --eval-data x.npz").status == 0
        found = {item["name"]: item["quantized_value"] for item in report(light)["metrics"]}
        assert found["sqnr_db"] > 20 and 0 < found["max_abs_error"] < 3e38 and found["cosine"] > 0.9, method


def report(folder: Path) -> Any:
    return json.loads((folder / "run/report.json").read_text())


def test_a_model_that_was_always_zero_is_judged(light: Path, ptq: Any) -> None:
    np.savez(light / "x.npz", x=X * 0)
    assert ptq(CALIBRATE).status == ptq("export --run run").status == 0
    assert ptq("evaluate --run run --eval-data x.npz").status == 0
    found = {item["name"]: item["quantized_value"] for item in report(light)["metrics"]}
    assert found["max_abs_error"] == 0


LENGTHS = """\
import numpy as np


def batches():
    random = np.random.default_rng(5)
    for samples, length in ((3, 4), (2, 9), (5, 1), (1, 30), (4, 30)):
        yield {"x": random.normal(size=(samples, length, 8)).astype(np.float32)}
"""


SEQUENCES = """(float[n,length,8] x) => (float[n,length,5] y) <float[8,16] w, float[16,5] v> {
    [first] hidden = MatMul(x, w) [relu] alive = Relu(hidden) [second] y = MatMul(alive, v) }"""


@pytest.fixture
def sequences(folder):
    """The folder with a model over sequences of any length, and data of several."""
    (folder / "model.onnx").write_bytes(serialized(build(SEQUENCES)))
    (folder / "data.py").write_text(LENGTHS)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        "--set data.batch_size=1",
        "--set data.batch_size=4 --set runtime.threads=1 --set runtime.max_memory=4GiB",
    ],
)
def test_sequences_of_any_length_are_all_counted(sequences, ptq, settings):
    assert ptq(f"calibrate model.onnx --data data.py:batches --run run {settings}").status == 0
    names: dict[str, Any] = {}
    exec(LENGTHS, names)
    weights = {
        item.name: numpy_helper.to_array(item)
        for item in onnx.load(sequences / "model.onnx").graph.initializer
    }
    x = np.concatenate([batch["x"].reshape(-1, 8) for batch in names["batches"]()])
    alive = np.maximum(x @ weights["w"], 0)
    found = load_calibration(sequences / "run/calibration.safetensors").statistics
    assert found["x"].count == x.size and found["alive"].count == alive.size
    assert (found["x"].low, found["x"].high) == (x.min(), x.max())
    np.testing.assert_allclose(found["alive"].high, alive.max(), rtol=1e-5)
    assert found["alive"].zeros == np.count_nonzero(alive == 0)
    assert ptq("export --run run").status == 0
    assert ptq("evaluate --run run --eval-data data.py:batches --set data.batch_size=4").status == 0
    assert report(sequences)["evaluation"]["samples"] == 15


FOLDED = """(float[n,3,8,8] x) => (float[n,8,8,8] y) <float[8,3,1,1] w, float[8,8,1,1] v> {
    [conv] a = Conv(x, w) [swish] b = HardSwish(a) [relu] c = Relu(b) [last] y = Conv(c, v) }"""


def test_relu_behind_a_hard_swish_is_folded_into_its_range(folder: Path, ptq: Any) -> None:
    (folder / "model.onnx").write_bytes(serialized(build(FOLDED)))
    np.savez(folder / "x.npz", x=X)
    assert ptq(CALIBRATE).status == 0
    assert ptq("export --run run").status == 0


ALLOWED = "calibrate model.onnx --data bad.npz --set calibration.allow_nonfinite=true"


@pytest.fixture
def bad(folder: Path) -> Path:
    with np.load(folder / "calib.npz") as arrays:
        x = arrays["x"].copy()
    x[3, 1, 2, 4] = np.nan
    x[7, 0, 0, 0], x[9, 2, 5, 5] = np.inf, -np.inf
    np.savez(folder / "bad.npz", x=x)
    return folder


def test_with_it_they_are_counted_and_left_out_of_the_range(bad: Path, ptq: Any) -> None:
    outcome = ptq(ALLOWED)

    assert outcome.status == 0
    assert "warning: 'x' contained 1 NaN, 1 +Inf and 1 -Inf; its range leaves them out" in outcome.out
    with np.load(bad / "bad.npz") as arrays:
        x = arrays["x"]
    found = statistics_in(bad)["x"]
    assert found.nonfinite == NonFinite(1, 1, 1)
    assert (found.low, found.high) == (x[np.isfinite(x)].min(), x[np.isfinite(x)].max())
    assert found.count == x.size - 3


def test_they_are_shown_with_a_warning(bad: Path, ptq: Any) -> None:
    assert ptq(ALLOWED).status == 0

    for words in ("inspect", "inspect --tensor x"):
        assert "warning: 'x' contained 1 NaN, 1 +Inf and 1 -Inf (0.13 % of its values)" in ptq(words).out
    tensor = json.loads(ptq("inspect --json").out)["tensors"][0]
    assert tensor["nonfinite"] == {"nan": 1, "positive": 1, "negative": 1}
    assert json.loads(ptq("inspect --tensor x --json").out)["tensor"]["nonfinite"]["nan"] == 1
    result = json.loads(ptq(f"{ALLOWED} --json").out)["nonfinite"]
    assert result["x"] == {"nan": 1, "positive": 1, "negative": 1}
    assert ptq("export").status == 0


def test_a_model_that_makes_them_is_refused_or_counted(folder: Path, ptq: Any, refuse: Any) -> None:
    text = "(float[n,3,8,8] x) => (float[n,3,8,4] y) <float[8,4] w> { log = Log(x) [fc] y = MatMul(log, w) }"
    (folder / "log.onnx").write_bytes(serialized(build(text)))
    with np.load(folder / "calib.npz") as arrays:
        negative = np.count_nonzero(arrays["x"] < 0)
    refuse("calibrate log.onnx --data calib.npz --run new", "PTQ-CALIB-001", "tensor 'log' is nan at ")

    assert (
        ptq("calibrate log.onnx --data calib.npz --run new --set calibration.allow_nonfinite=true").status
        == 0
    )

    assert statistics_in(folder, "new")["log"].nonfinite == NonFinite(nan=negative)


@pytest.mark.parametrize("method", ["histogram", "max"])
def test_without_any_finite_value_the_export_says_so(folder, ptq, refuse, method, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    np.savez(folder / "bad.npz", x=np.full((4, 3, 8, 8), np.nan, np.float32))
    assert ptq(f"{ALLOWED} --method {method}").status == 0

    shown, explained = ptq("inspect"), ptq("inspect --tensor x")

    for outcome in (shown, explained):
        assert outcome.status == 0
        assert "'x' contained 768 NaN and no finite value; ptq export will fail" in outcome.out
    assert "not finite" in shown.out
    refuse("export", "PTQ-CALIB-001", "tensor 'x' had no finite value in any sample")

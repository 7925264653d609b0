"""A Concat of boxes and scores near an output: in integers one scale would serve both."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.pipeline.views.calibration_view import explain_tensor
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request
from tests.unit.plan.graphs import build, serialized, sqnr_db

DETECTOR = """(float[N,8,16,16] x) => (float[] y)
<float[32,8,3,3] w1, float[32,32,3,3] w2, float[4,32,1,1] wb, float[6,32,1,1] ws, int64[3] s = {0,10,-1},
 float[10,10] wd> {
  [stem] a = Conv<pads=[1,1,1,1]>(x, w1) [act] r = Relu(a)
  [body] b = Conv<pads=[1,1,1,1]>(r, w2) [act2] q = Relu(b)
  [boxes] box = Conv(q, wb)
  [logits] l = Conv(q, ws) [probabilities] p = Sigmoid(l)
  [join] c = Concat<axis=1>(box, p)
  [flat] f = Reshape(c, s) [turn] t = Transpose<perm=[0,2,1]>(f)
  [decode] y = MatMul(t, wd)
}"""


def detector(size: float) -> onnx.ModelProto:
    """Boxes of about this size, and scores between 0 and 1, each in a channel of its own."""
    wb = np.random.default_rng(1).standard_normal((4, 32, 1, 1)).astype(np.float32) * size
    return onnx.ModelProto.FromString(
        serialized(build(DETECTOR, constants={"wb": wb, "wd": np.eye(10, dtype=np.float32)}))
    )


@pytest.fixture
def calibrate(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)

    def calibrate(target: str, size: float = 100.0) -> Request:
        onnx.save(detector(size), "model.onnx")
        np.save("x.npy", np.random.default_rng(0).standard_normal((8, 8, 16, 16)).astype(np.float32))
        run_calibrate(Request(settings={"data": "x.npy", "target": target}, model=Path("model.onnx")), run)
        return Request(settings={})

    return calibrate


def scores_db(run) -> float:
    """SQNR of the scores of both models, without the boxes."""
    x = {"x": np.random.default_rng(5).standard_normal((4, 8, 16, 16)).astype(np.float32)}
    exact, found = (Session(path.read_bytes(), threads=1).run(x)[0][..., 4:] for path in
                    (run.float_model, run.quantized_model))  # fmt: skip
    return sqnr_db(exact, found)


@pytest.mark.parametrize("target", ["ort-cpu", "generic"])
def test_a_join_of_boxes_and_scores_stays_float_and_says_why(calibrate, run, target):
    request = calibrate(target)
    result = run_export(request, run)
    layers = {layer.name: layer for layer in result.plan.layers}
    assert not layers["join"].quantized
    assert "would leave 'p' less than 1 of its 255 steps" in layers["join"].reason or target == "generic"
    assert not layers["decode"].quantized
    assert layers["body"].quantized
    assert scores_db(run) > 25.0
    # The report, the file itself and explain say the same.
    report = run_evaluate(Request(settings={"eval_data": "x.npy"}), run).report
    assert next(layer for layer in report.layers if layer.name == "join").reason == layers["join"].reason
    inspected = run_inspect(Request(settings={}, model=run.quantized_model)).plan.layers
    assert next(layer for layer in inspected if layer.name == "join").reason == layers["join"].reason
    readers = explain_tensor(Request(settings={}), run, "p").readers
    assert [(node.name, node.integer, node.reason) for node in readers] == [
        ("join", False, layers["join"].reason)
    ]


def test_a_join_that_the_user_includes_stays_integer_and_loses_its_scores(calibrate, run):
    calibrate("ort-cpu")
    result = run_export(Request(settings={"include": ["*"]}), run)
    assert all(layer.quantized for layer in result.plan.layers if layer.name in ("join", "decode"))
    assert scores_db(run) < 10.0


def test_a_join_of_like_ranges_stays_integer(calibrate, run):
    result = run_export(calibrate("ort-cpu", size=0.2), run)
    assert next(layer for layer in result.plan.layers if layer.name == "join").quantized


def test_a_join_whose_readers_are_the_work_stays_integer(calibrate, run, monkeypatch):
    request = calibrate("ort-cpu")
    monkeypatch.setattr("ptq_cli.placement.concat_ranges.LARGEST_SHARE", 0.001)
    result = run_export(request, run)
    assert next(layer for layer in result.plan.layers if layer.name == "join").quantized

"""A Concat of boxes and scores near an output: in integers one scale would serve both.

A HardSwish is written in integers only where that adds little noise.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.collectors.histogram_collector import HistogramCollector
from ptq_cli.collectors.max_collector import MaxCollector
from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range
from ptq_cli.core.formats import UINT8
from ptq_cli.core.progress import silent
from ptq_cli.core.tensors import Array
from ptq_cli.pipeline.calibration_view import explain_tensor
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.placement.noisy_layers import MOST_NOISE, added_noise
from ptq_cli.qdq.write.operator_forms import clamped_sum, hard_swish
from ptq_cli.runtime.session import Session
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, serialized, sqnr_db

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
    monkeypatch.setattr("ptq_cli.placement.noisy_layers.LARGEST_SHARE", 0.001)
    result = run_export(request, run)
    assert next(layer for layer in result.plan.layers if layer.name == "join").quantized


def grid(values: Array) -> QuantParameters:
    return parameters_from_range(min(float(values.min()), 0.0), max(float(values.max()), 0.0), UINT8)


def noise_of(x: Array, collector: HistogramCollector | MaxCollector) -> float:
    collector.update(x.astype(np.float32))
    return added_noise(collector.statistics(), grid(x), grid(hard_swish(x)))


@each_case("spread", [0.02, 0.3, 1.0, 3.0, 30.0])
@each_case(
    "shift, collector",
    [(0.0, HistogramCollector), (1.0, HistogramCollector), (-2.0, HistogramCollector), (0.0, MaxCollector)],
)
def test_values_around_zero_are_nearly_free(spread, shift, collector):
    x = spread * (np.random.default_rng(0).standard_normal(20_000) + shift)
    assert 0 <= noise_of(x, collector()) <= MOST_NOISE


def test_values_far_from_zero_in_a_small_part_of_the_grid_are_not():
    x = -1.4 + 0.003 * np.random.default_rng(0).uniform(-1, 1, 20_000)
    assert noise_of(x, HistogramCollector()) > 5 * MOST_NOISE


def test_the_noise_is_that_of_the_graph():
    model = build("(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[4,16,1,1] v> {"
                  " c = Conv(x, w) h = HardSwish(c) y = Conv(h, v) }")  # fmt: skip
    graph = quantized(model)
    [gate] = [node for node in graph.graph if node.name == "h/gate/QuantizeLinear"]
    x = gate.inputs[0].producer().inputs[0]
    pair = x.producer()
    scale, zero = (pair.inputs[index].const_value.numpy() for index in (1, 2))
    before = QuantParameters(scale, zero.astype(np.int64), UINT8)
    product = next(node for node in graph.graph if node.name == "h").outputs[0]
    for value in (x, product):
        graph.graph.outputs.append(value)
    inputs = {"x": np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)}
    _, values, found = run(ir.from_proto(ir.to_proto(graph)), inputs, optimize=False)
    assert np.allclose(found, clamped_sum(values.astype(np.float64), before), atol=1e-5)


@pytest.mark.parametrize(("bias", "kept"), [(0.0, False), (-2.3, True)])
def test_an_export_keeps_a_noisy_one_in_float_between_its_pairs(tmp_path, bias, kept):
    weight = np.full((16, 3, 3, 3), 1e-3 if kept else 0.2, np.float32)
    model = build(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) <float[16,3,3,3] w, float[16] b, float[4,16,1,1] v> {"
        " c = Conv(x, w, b) h = HardSwish(c) y = Conv(h, v) }",
        constants={"w": weight, "b": np.full(16, bias, np.float32)},
    )
    (tmp_path / "m.onnx").write_bytes(serialized(model))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(-1, 1, (16, 3, 8, 8)).astype(np.float32))
    run_dir = RunDirectory(tmp_path / "run")
    settings = {"data": str(tmp_path / "x.npy")}
    run_calibrate(Request(settings=settings, model=tmp_path / "m.onnx", folder=tmp_path), run_dir, silent)
    result = run_export(Request(settings={"prefer": "size"}, folder=tmp_path), run_dir)
    [layer] = [item for item in result.plan.layers if item.op == "HardSwish"]
    assert (layer.quantized, layer.between_pairs) == (not kept, kept)
    assert ("more than 1 dB" in layer.reason) == kept
    operators = [node.op_type for node in onnx.load(result.output).graph.node]
    assert ("HardSwish" in operators) == kept and operators.count("QuantizeLinear") >= 3

"""A calibration is exported for another target, where that quantizes nothing that was not measured."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.analysis.run_analyze import run_analyze
from ptq_cli.core.errors import StaleCalibrationError
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.setup.resolve import Request
from tests.graphs import parsed

RESIDUAL = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,8,8] x) => (float[N,3,8,8] y) {
    [one] a = Conv<pads=[1,1,1,1]>(x, w1) [act] r = Relu(a) [two] c = Conv<pads=[1,1,1,1]>(r, w2)
    [sum] s = Add(c, r) [last] y = Conv<pads=[1,1,1,1]>(s, w3) }"""


@pytest.fixture
def calibrated(folder, run):
    """Calibrates the model for a target."""
    random = np.random.default_rng(0)
    weights = {f"w{at}": (random.standard_normal((3, 3, 3, 3)) / 5).astype(np.float32) for at in (1, 2, 3)}
    onnx.save(parsed(RESIDUAL, weights), "residual.onnx")
    np.save("x.npy", random.standard_normal((8, 3, 8, 8)).astype(np.float32))

    def calibrated(target: str) -> Request:
        data = {"data": "x.npy", "eval_data": "x.npy"}
        run_calibrate(Request(settings={**data, "target": target}, model=Path("residual.onnx")), run)
        return Request(settings={"eval_data": "x.npy"})

    return calibrated


def test_what_was_measured_for_one_target_serves_another(calibrated, run):
    request = calibrated("ort-cpu")
    exported = run_export(Request(settings={"target": "tensorrt"}), run)
    assert exported.target == "tensorrt"
    # The report is of what was exported, whatever the calibration's flags say.
    report = run_evaluate(request, run).report
    assert report.target == "tensorrt"
    assert run_analyze(request, run).analysis.target == "tensorrt"
    assert run_export(Request(settings={}), run).target == "ort-cpu"
    assert run_evaluate(request, run).report.target == "ort-cpu"


def test_it_is_the_same_as_calibrated_for_that_target(calibrated, run):
    calibrated("ort-cpu")
    run_export(Request(settings={"target": "tensorrt"}), run, Path("other.onnx"))
    calibrated("tensorrt")
    run_export(Request(settings={}), run, Path("own.onnx"))
    graphs = [onnx.load(name).graph for name in ("other.onnx", "own.onnx")]
    assert graphs[0] == graphs[1]


def test_what_was_not_measured_is_named(calibrated, run):
    calibrated("tensorrt")
    message = "target 'ort-cpu' quantizes tensors that the calibration did not measure: 'c'"
    with pytest.raises(StaleCalibrationError, match=message) as caught:
        run_export(Request(settings={"target": "ort-cpu"}), run)
    assert "--target ort-cpu" in (caught.value.hint or "")


def test_tensors_that_are_tied_are_evaluated_and_analyzed(calibrated, run):
    tied = 'name = "tied"\ndescription = "an Add of one scale"\nextends = "generic"\n[op.Add]\nties = true\n'
    Path("tied.toml").write_text(tied)
    request = calibrated("./tied.toml")
    run_export(Request(settings={}), run)
    assert run_evaluate(request, run).report.target == "tied"
    assert run_analyze(request, run).analysis.layers


def test_a_model_of_another_target_of_ones_own_is_not_taken_for_this_one(calibrated, run):
    Path("own.toml").write_text('name = "own"\ndescription = "as tensorrt"\nextends = "tensorrt"\n')
    request = calibrated("ort-cpu")
    run_export(Request(settings={"target": "./own.toml"}), run)
    with pytest.raises(
        StaleCalibrationError, match="was exported for target 'own', and the recipe names 'ort-cpu'"
    ):
        run_evaluate(request, run)


def test_the_target_of_a_recipe_holds_beside_a_folder_s_recipe_without_one(calibrated, run):
    calibrated("ort-cpu")
    Path("rec.toml").write_text('[quantization]\ntarget = "tensorrt"\n')
    Path("ptq.toml").write_text("[gate.min]\nsqnr_db = 5\n")
    model, settings = Path("residual.onnx"), {"data": "x.npy"}
    run_calibrate(Request(recipe_file=Path("rec.toml"), settings=settings, model=model), run)
    assert run_export(Request(settings={}), run).target == "tensorrt"

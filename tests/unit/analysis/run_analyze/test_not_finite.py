"""``analyze`` where a quantized layer makes NaN or Inf: the layer is marked, and all others are measured."""

import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.analysis.analysis_subject import Question
from ptq_cli.analysis.run_analyze import run_analyze
from ptq_cli.analysis.terminal_tables import print_analysis
from ptq_cli.core.documents import read_document
from ptq_cli.evaluation.document.analysis_document import Analysis, LayerAnalysis
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.graphs import parsed

RUN = RunDirectory(Path("ptq-run"))
TEXT = """<ir_version: 10, opset_import: ["": 20]>
    g (float[n, 8] x) => (float[n, 8] y) {
        [first] a = MatMul(x, w0)
        [logarithm] b = Log(a)
        [second] c = MatMul(b, w1)
        [third] y = MatMul(c, w2)
    }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data of which one sample is so small that 8 bits make it 0, whose logarithm is -inf."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).uniform(0.5, 1.0, (12, 8)).astype(np.float32)
    x[7] = 1e-5
    np.savez("calib.npz", x=x)
    return tmp_path


def make_run(text: str, **settings: object) -> None:
    random = np.random.default_rng(1)
    weights = random.uniform(0.1, 1.0, (8, 8)), *random.standard_normal((2, 8, 8))
    constants = {f"w{at}": array.astype(np.float32) for at, array in enumerate(weights)}
    onnx.save(parsed(text, constants), "model.onnx")
    request = Request(
        settings={"data": "calib.npz", "amax": "max", "prefer": "size", **settings}, model=Path("model.onnx")
    )
    run_calibrate(request, RUN)
    run_export(request, RUN)


def analyze(question: Question | None = None) -> Analysis:
    return run_analyze(Request(settings={"eval_data": "calib.npz"}), RUN, None, question).analysis


def layers_of(analysis: Analysis) -> dict[str, LayerAnalysis]:
    return {layer.name: layer for layer in analysis.layers}


def test_a_layer_that_makes_the_output_infinite_alone_is_marked(folder, capsys, monkeypatch):
    # The whole model stays finite, because the input of the second layer saturates.
    make_run(TEXT)
    run_evaluate(Request(settings={"eval_data": "calib.npz"}), RUN)
    analysis = analyze()
    assert analysis.metric is not None and math.isfinite(analysis.metric.sqnr_db)
    worst, *others = analysis.ranked()
    assert (worst.name, worst.cause, worst.remedy) == ("first", "not finite", "--exclude first")
    assert worst.finding.endswith("the output holds NaN or Inf, first at sample 7 (calib.npz[7])")
    assert worst.sensitivity is not None and math.isnan(worst.sensitivity.sqnr_only_quantized_db)
    assert {layer.name for layer in others} == {"second", "third"}
    for layer in others:
        assert layer.sensitivity is not None and math.isfinite(layer.sensitivity.sqnr_only_quantized_db)
    found = json.loads(RUN.analysis.read_text())["layers"][0]
    assert (found["cause"], found["sensitivity"]["sqnr_only_quantized_db"]) == ("not finite", "nan")
    assert [layer.cause for layer in read_document(Analysis, RUN.analysis).layers] == [
        x.cause for x in analysis.layers
    ]
    page = RUN.report_html.read_text()
    row = re.search(r'<tr id="l1".*?</tr>', page, re.DOTALL)
    assert row is not None and ">NaN<" in row[0] and worst.finding in row[0]
    monkeypatch.setenv("COLUMNS", "80")
    print_analysis(analysis, RUN.path, 10, tensors=False)
    out = capsys.readouterr().out
    assert re.search(r"1 +first +NaN +not finite", out)
    assert "to try: ptq export --exclude first\n" in out


def test_a_quantized_model_whose_output_is_not_finite_is_analyzed(folder, capsys):
    make_run(TEXT.replace("[second] c = MatMul(b, w1)", "[second] c = MatMul(a, w1)").replace(
        "y = MatMul(c, w2)", "d = MatMul(c, w2) [sum] y = Add(b, d)"
    ))  # fmt: skip
    analysis = analyze()
    assert analysis.metric is not None and math.isnan(analysis.metric.sqnr_db)
    first = layers_of(analysis)["first"]
    assert (first.cause, first.remedy) == ("not finite", "--exclude first")
    print_analysis(analysis, RUN.path, 10, tensors=True)
    assert "SQNR of the output: none, because the quantized model's output holds NaN or Inf" in (
        capsys.readouterr().out
    )


def test_a_tensor_of_the_float_model_that_is_not_finite_is_marked(folder, capsys):
    x = np.load("calib.npz")["x"]
    x[7] = 0.0
    np.savez("calib.npz", x=x)
    squashed = "squashed = Sigmoid(b) [second] c = MatMul(squashed, w1)"
    make_run(TEXT.replace("[second] c = MatMul(b, w1)", squashed), allow_nonfinite=True)
    analysis = analyze()
    (bad,) = [tensor for tensor in analysis.tensors if tensor.cause == "not finite"]
    assert (bad.name, bad.finding) == (
        "b", "it holds NaN or Inf in the float model, first at sample 7 (calib.npz[7])"
    )  # fmt: skip
    assert math.isnan(bad.sqnr_accumulated_db) and math.isnan(bad.sqnr_isolated_db)
    assert analysis.metric is not None and math.isfinite(analysis.metric.sqnr_db)
    print_analysis(analysis, RUN.path, 10, tensors=True)
    assert re.search(r"b +NaN +not finite +NaN", capsys.readouterr().out)


def test_the_layer_is_left_out_where_it_is_skipped(folder: Path) -> None:
    make_run(TEXT)
    found = layers_of(analyze(Question(skipped=("f*",))))
    assert found["first"].sensitivity is None and found["first"].cause == ""
    assert found["second"].sensitivity is not None

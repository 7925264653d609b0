"""``analyze`` in a folder with a run: what it finds, what it writes, what it refuses."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.analysis.analysis_subject import Question
from ptq_cli.analysis.run_analyze import run_analyze
from ptq_cli.core.documents import read_document
from ptq_cli.core.errors import (
    LabelError,
    MetricError,
    MissingStageError,
    NonFiniteActivationError,
    NonFiniteDataError,
    StaleCalibrationError,
    UnknownNameError,
    UsageError,
)
from ptq_cli.core.progress import Progress
from ptq_cli.evaluation.document.analysis_document import Analysis
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_evaluate import run_evaluate, run_evaluations
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_quantize import run_quantize
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory
from tests.graphs import parsed

LAYERS = 4


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of four MatMuls in a row, the third of them with a weight that 8 bits cannot hold."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    weights = [random.standard_normal((8, 8)).astype(np.float32) / 3 for _ in range(LAYERS)]
    # What the large values are multiplied with is always 0: they do nothing, but take the range.
    weights[1][:, 0], weights[2][0] = 0.0, 100.0
    make_run(weights, random.standard_normal((24, 8)).astype(np.float32))
    return RunDirectory(Path("ptq-run"))


def make_run(weights: list[np.ndarray], x: np.ndarray, *, batch: int | str = "n", **settings: object) -> None:
    names = ["x", *(f"h{at}" for at in range(len(weights)))]
    nodes = " ".join(f"[layer{at}] h{at} = MatMul({names[at]}, w{at})" for at in range(len(weights)))
    ends = f"(float[{batch},{x.shape[1]}] x) => (float[{batch},{weights[-1].shape[1]}] {names[-1]})"
    constants = {f"w{at}": array for at, array in enumerate(weights)}
    onnx.save(parsed(f"{ends} {{ {nodes} }}", constants, opset=20, ir_version=10), "model.onnx")
    labels = np.arange(len(x)) % weights[-1].shape[1]
    np.savez("calib.npz", x=x.astype(np.float32), label=labels)
    data = {"data": "calib.npz", "eval_data": "calib.npz"}
    request = Request(settings={**data, "recover": ["none"], **settings}, model=Path("model.onnx"))
    run = RunDirectory(Path("ptq-run"))
    run_calibrate(request, run)
    run_export(request, run)


def analyze(run: RunDirectory, question: Question | None = None, **settings: object) -> Analysis:
    return run_analyze(Request(settings={"eval_data": "calib.npz", **settings}), run, None, question).analysis


def test_every_tensor_and_layer_has_a_row_and_a_ruined_layer_ranks_first(deep: RunDirectory) -> None:
    analysis = analyze(deep)
    assert read_document(Analysis, deep.analysis) == analysis
    worst, *others = analysis.ranked()
    least = worst.sensitivity.sqnr_only_quantized_db + 6
    assert worst.name == "layer2"
    assert all(other.sensitivity.sqnr_only_quantized_db > least for other in others)
    # All others quantized cost little: without the ruined layer the whole model is as good as float.
    assert worst.sensitivity.sqnr_left_float_db > analysis.metric.sqnr_db + 6
    tensors = [("activation", name) for name in ("x", "h0", "h1", "h2")]
    tensors += [("weight", f"w{index}") for index in range(LAYERS)]
    assert [(tensor.kind, tensor.name) for tensor in analysis.tensors] == tensors
    assert [layer.name for layer in analysis.layers] == [f"layer{index}" for index in range(LAYERS)]
    x, weight = analysis.tensors[0], analysis.tensors[4]
    assert (x.shape, x.dtype, x.layers, x.op) == ((None, 8), "uint8", ("layer0",), "")
    assert (weight.shape, weight.axis, weight.dtype, weight.op) == ((8, 8), 1, "int8", "MatMul")
    assert {layer.multiply_accumulates for layer in analysis.layers} == {64}
    assert analysis.layers[-1].sqnr_isolated_db is None, "the model's output stays float"
    assert analysis.layers[-1].sqnr_accumulated_db == pytest.approx(analysis.metric.sqnr_db)
    # Both models and both halves once; of each layer two models, from it on: 4/4 + 3/4 + 2/4 + 1/4, twice.
    assert (analysis.cost.variants, analysis.cost.forward_passes) == (8, 9.0)
    other = analyze(deep, Question(order="metric"), batch_size=5, threads=2)
    assert (other.order, other.layers[0].output, other.tensors) == ("metric", "h0", analysis.tensors)
    values = [layer.sensitivity.metric_only_quantized for layer in other.ranked()]
    assert values == sorted(values)
    report = run_evaluate(Request(settings={"eval_data": "calib.npz"}), deep).report
    found = {metric.name: metric for metric in report.metrics}
    assert analysis.metric.float_value == found["top1"].float_value
    assert analysis.metric.quantized_value == found["top1"].quantized_value
    assert analysis.metric.sqnr_db == pytest.approx(found["sqnr_db"].quantized_value)
    assert analysis.samples.data_digest == report.evaluation.data_digest
    assert analysis.models.quantized_model == report.model.quantized_model


def test_weights_and_activations_are_measured_each_by_itself(deep: RunDirectory) -> None:
    analysis = analyze(deep)
    model = onnx.load(deep.float_model)
    weights = [numpy_helper.to_array(item) for item in model.graph.initializer if item.name.startswith("w")]
    grids = [(item.scale_min, item.zero_point_min) for item in analysis.tensors if item.kind == "activation"]
    with np.load("calib.npz") as file:
        x = file["x"]

    def output(*, integers: bool, steps: bool) -> np.ndarray:
        found = x
        for weight, (scale, zero) in zip(weights, grids, strict=True):
            if integers:
                found = (np.clip(np.rint(found / scale) + zero, 0, 255) - zero) * scale
            step = np.abs(weight).max(axis=0) / 127
            step[step == 0] = 1
            found = found @ (np.rint(weight / step) * step if steps else weight)
        return found

    def sqnr_db(found: np.ndarray) -> float:
        wanted = output(integers=False, steps=False)
        return float(10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()))

    shares = analysis.shares
    assert shares.activations.sqnr_db == pytest.approx(sqnr_db(output(integers=True, steps=False)), abs=0.05)
    assert shares.weights.sqnr_db == pytest.approx(sqnr_db(output(integers=False, steps=True)), abs=0.05)
    assert (shares.both.sqnr_db, shares.both.metric) == (
        analysis.metric.sqnr_db,
        analysis.metric.quantized_value,
    )
    of_weights, of_activations = shares.advice
    won = max(0.0, shares.weights.sqnr_db - shares.both.sqnr_db)
    assert f"better activations can win at most {won:.1f} dB" in of_activations
    assert of_weights.startswith("better weights can win at most ")


def test_work_is_of_one_sample_where_the_model_fixes_a_batch_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    weights = [random.standard_normal((8, 8)).astype(np.float32) / 3 for _ in range(2)]
    make_run(weights, random.standard_normal((6, 8)), batch=2, batch_size=2)
    found = analyze(RunDirectory(Path("ptq-run")))
    assert found.samples.count == 6
    assert {layer.multiply_accumulates for layer in found.layers} == {64}


def test_layers_can_be_chosen(deep: RunDirectory) -> None:
    analysis = analyze(deep, Question(layers=("layer[01]", "layer3")))
    assert {layer.name for layer in analysis.ranked()} == {"layer0", "layer1", "layer3"}
    assert sorted(layer.sensitivity.rank for layer in analysis.ranked() if layer.sensitivity) == [1, 2, 3]
    with pytest.raises(UnknownNameError, match="there is no quantized layer 'laier1'") as caught:
        analyze(deep, Question(layers=("laier1",)))
    assert "layer1" in caught.value.message


def test_without_sensitivity_tensors_are_measured_alone(deep: RunDirectory) -> None:
    analysis = analyze(deep, Question(sensitivity=False))
    assert analysis.metric is None and analysis.cost.forward_passes == 4.0
    assert not analysis.ranked()
    assert analysis.tensors == analyze(deep).tensors


def test_the_metric_can_be_one_that_compares_both_models(deep: RunDirectory) -> None:
    metric = analyze(deep, metric=["cosine"]).metric
    assert (metric.name, metric.needs_labels, metric.float_value) == ("cosine", False, None)


def test_without_labels_the_sqnr_is_the_metric(deep: RunDirectory) -> None:
    np.savez("bare.npz", x=np.ones((3, 8), np.float32))
    analysis = analyze(deep, eval_data="bare.npz")
    assert analysis.metric is not None and analysis.metric.name == "sqnr_db"
    assert all(
        layer.sensitivity.drop_only_quantized is None for layer in analysis.ranked() if layer.sensitivity
    )
    with pytest.raises(LabelError, match="top1"):
        analyze(deep, eval_data="bare.npz", metric=["top1"])


def test_memory_does_not_grow_with_the_samples(deep: RunDirectory) -> None:
    np.savez("many.npz", x=np.random.default_rng(2).standard_normal((2000, 8)).astype(np.float32))
    request = Request(
        settings={"eval_data": "many.npz", "eval_samples": 2000, "batch_size": 50, "threads": 1}
    )
    held, peaks = [], []

    def watch(step: Progress) -> None:
        if step.stage == "analyze" and step.done * 40 % (step.total or 1) == 0:  # After each batch.
            peak = tracemalloc.get_traced_memory()[1]
            gc.collect()  # Objects in cycles wait for the collector: what they hold is not kept.
            now = tracemalloc.get_traced_memory()[0]
            held.append(now)
            peaks.append(peak - now)
            tracemalloc.reset_peak()

    analyze(deep)  # Compiles what takes long to compile while each allocation is traced.
    gc.freeze()  # What other tests have left would be searched at each step.
    tracemalloc.start()
    run_analyze(request, deep, None, None, watch)
    tracemalloc.stop()
    gc.unfreeze()
    assert len(held) == 41
    one_activation = 50 * 8 * 4
    # What comparisons keep of each sample, 5 numbers, is all that grows: activations are several times that.
    assert held[-1] - held[5] < 36 * 50 * 8 * 5 * 1.5
    assert max(peaks[5:]) < 1.2 * max(peaks[1:5]) + one_activation


def test_what_does_not_belong_together_is_refused(deep: RunDirectory) -> None:
    before = deep.quantized_model.read_bytes()
    run_calibrate(Request(settings={"data": "calib.npz", "samples": 5}, model=Path("model.onnx")), deep)
    with pytest.raises(StaleCalibrationError):
        analyze(deep)
    assert not deep.analysis.exists()
    assert deep.quantized_model.read_bytes() == before


def test_nan_in_the_data_is_refused_and_an_earlier_analysis_stays(deep: RunDirectory) -> None:
    analyze(deep)
    before = deep.analysis.read_bytes()
    x = np.ones((4, 8), np.float32)
    x[2, 3] = np.nan
    np.savez("nan.npz", x=x)
    with pytest.raises(NonFiniteDataError, match=r"sample 'nan.npz\[2\]'"):
        analyze(deep, eval_data="nan.npz")
    assert deep.analysis.read_bytes() == before


def test_ones_own_metric_judges_the_variants(deep: RunDirectory) -> None:
    Path("own.py").write_text("def close(output, labels):\n    return (output.argmax(1) == labels) * 0.5\n")
    analysis = analyze(deep, metric=["own.py:close"])
    top1 = analyze(deep, metric=["top1"])
    assert analysis.metric.name == "close"
    assert analysis.metric.quantized_value == pytest.approx(top1.metric.quantized_value / 2)
    found = [layer.sensitivity for layer in analysis.layers if layer.sensitivity]
    expected = [layer.sensitivity for layer in top1.layers if layer.sensitivity]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.metric_left_float == pytest.approx(theirs.metric_left_float / 2)


def test_nan_in_an_output_names_the_sample(deep: RunDirectory) -> None:
    x = np.ones((4, 8), np.float32)
    x[3] = 3e38
    np.savez("large.npz", x=x)
    with pytest.raises((MetricError, NonFiniteActivationError), match=r"large.npz\[3\]"):
        analyze(deep, eval_data="large.npz")
    assert not deep.analysis.exists()


@pytest.mark.parametrize(("named", "name"), [("sqnr_db[h3]", "sqnr_db"), ("cosine[h3]", "cosine")])
def test_a_comparison_may_name_its_output(deep: RunDirectory, named: str, name: str) -> None:
    metric = analyze(deep, metric=[named]).metric
    assert metric is not None and metric.name == name
    with pytest.raises(MetricError, match="no output 'h9'"):
        analyze(deep, metric=["cosine[h9]"])


def test_layers_can_be_skipped(deep: RunDirectory) -> None:
    question = Question(layers=("layer[013]",), skipped=("layer1", "layer2"))
    assert {layer.name for layer in analyze(deep, question).ranked()} == {"layer0", "layer3"}
    with pytest.raises(
        UnknownNameError, match=r"there is no quantized layer 'laier\*' \(did you mean 'layer\*'"
    ):
        analyze(deep, Question(skipped=("laier*",)))
    with pytest.raises(UsageError, match="leave no layer to measure"):
        analyze(deep, Question(skipped=("layer*",)))


def test_the_data_of_the_last_evaluation_are_taken(deep: RunDirectory) -> None:
    x = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32)
    np.savez("other.npz", x=x)
    Path("named.toml").write_text('[evaluation]\ndata = "calib.npz"\n')
    run_evaluate(Request(settings={"eval_data": "other.npz", "eval_samples": 7}), deep)

    def found(recipe: str | None = None, **settings: object) -> tuple[str, int, bool]:
        request = Request(settings=settings, recipe_file=Path(recipe) if recipe else None)
        result = run_analyze(request, deep, None, Question(sensitivity=False))
        samples = result.analysis.samples
        return (samples.source, samples.count, result.is_last_evaluation)

    assert found() == ("other.npz", 7, True)
    assert found(eval_samples=8) == ("other.npz", 8, True)
    assert found(eval_data="calib.npz") == ("calib.npz", 24, False)
    assert found("named.toml") == ("calib.npz", 24, False)
    deep.report_recipe.unlink()
    assert found() == ("calib.npz", 24, False), "the recipe's, without an evaluation"


def test_the_last_evaluation_of_one_of_several_models_is_its_own(deep: RunDirectory) -> None:
    np.savez("other.npz", x=np.ones((5, 8), np.float32))
    one, two = Path("one.onnx"), Path("two.onnx")
    for path in (one, two):
        path.write_bytes(deep.quantized_model.read_bytes())
    run_evaluate(Request(settings={"eval_data": "calib.npz"}), deep)
    run_evaluations(Request(settings={"eval_data": "other.npz"}), deep, [one, two])
    sources = [
        run_analyze(Request(settings={}), deep, model, Question(sensitivity=False)).analysis.samples.source
        for model in (one, None)
    ]
    assert sources == ["other.npz", "calib.npz"]


def test_a_model_written_elsewhere_is_found_and_judged_by_the_calibration_data(deep: RunDirectory) -> None:
    run, file = RunDirectory(Path("runs/one")), Path("out/model.onnx")
    file.parent.mkdir()
    run_quantize(Request(settings={"data": "calib.npz"}, model=Path("model.onnx")), run, file)
    told: list[str] = []
    found = [
        run_analyze(
            Request(settings={}), run, named, Question(sensitivity=False), lambda at: told.append(at.note)
        )
        for named in (file, None)
    ]
    assert [item.analysis.samples.source for item in found] == ["calib.npz"] * 2
    assert [note for note in told if note] == [
        data := "evaluation data: calib.npz, those of the calibration: no others are known",
        "quantized model: out/model.onnx, where this run's was written",
        data,
    ]
    file.unlink()
    with pytest.raises(
        MissingStageError, match=r"'out/model\.onnx', where the model of 'runs/one' was written"
    ):
        run_analyze(Request(settings={}), run)
    run_export(Request(settings={}), run)
    assert not run.model_location.exists(), "the run has a model of its own now"


def test_a_recovered_weight_is_judged_by_what_its_layer_makes(deep: RunDirectory) -> None:
    random = np.random.default_rng(0)
    weight = (random.standard_normal((32, 8)) / 3).astype(np.float32)
    x = random.standard_normal((64, 4)) @ random.standard_normal((4, 32))
    causes = []
    for recover in ("none", "round"):
        make_run([weight], x.astype(np.float32), weight_bits=5, recover=[recover])
        (row,) = (item for item in analyze(deep).tensors if item.kind == "weight")
        assert row.sqnr_isolated_db < 30.0
        causes.append(row.cause)
    assert causes == ["few steps", ""]

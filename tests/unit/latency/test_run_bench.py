"""bench measures models that belong together, on inputs that it names."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import ptq_cli
from ptq_cli.core.documents import encode
from ptq_cli.core.errors import ModelInputError, RecipeValueError, RuntimeFailedError
from ptq_cli.latency.run_bench import BenchOptions, run_bench
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory

FEW = BenchOptions(runs=5)


def test_a_runs_two_models_are_compared(finished):
    found = run_bench(Request(settings={"threads": 1}), finished, options=FEW)
    assert [path.name for path in found.models] == ["model.float.onnx", "model_int8.onnx"]
    assert (Path(found.data).name, found.latency.threads, found.latency.batch) == ("calib.npz", 1, 1)
    assert len(found.latency.ratios) == 1
    assert [str(spec) for spec in found.inputs] == ["x: float32[1, 4]"]


def test_from_python(finished):
    assert ptq_cli.bench(finished.float_model, runs=5, threads=1).latency.models[0].p50 > 0


def test_a_file_in_which_nothing_is_quantized_is_the_same_model(finished, tmp_path):
    proto = onnx.load(finished.float_model)
    proto.metadata_props.add(key="ptq.target", value="ort-cpu")
    del proto.graph.value_info[:]
    onnx.save(proto, told := tmp_path / "told.onnx")
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    onnx.save(proto, other := tmp_path / "other.onnx")
    found = run_bench(
        Request(settings={"threads": 1}),
        finished,
        [finished.float_model, told, finished.float_model, other],
        FEW,
    )
    assert found.same_as_first == (True, True, True, False)
    assert encode(found)["same_as_first"] == [True, True, True, False]


def test_data_make_whole_batches(finished):
    options = BenchOptions(batches=(4,), runs=5)
    found = run_bench(Request(settings={"threads": 1, "data": "calib.npz"}), finished, options=options)
    assert (found.data.endswith("calib.npz"), found.latency.batch) == (True, 4)


BAD = [
    ({"data": "calib.npz"}, {"batches": (11,)}, r"--batch is 11, and '.*calib\.npz' has 10 samples"),
    (
        {"input_shape": {"x": [2, 4]}},
        {"batches": (8,)},
        "--batch is 8, but --set model.input_shape says 2 samples for 'x'",
    ),
    ({}, {"batches": (0,)}, "--batch must be at least 1, got 0"),
    ({}, {"seconds": 0.0}, "seconds must be above 0, got 0"),
    ({}, {"runs": 0}, "runs must be at least 1, got 0"),
]


def test_lengths_that_make_no_sense_are_refused(finished):
    for settings, options, message in BAD:
        with pytest.raises(RecipeValueError, match=message):
            run_bench(Request(settings=settings), finished, options=BenchOptions(**options))


def test_models_with_other_inputs_are_refused(finished, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,5] x) => (float[N,5] y) { y = Neg(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "other.onnx")
    with pytest.raises(
        ModelInputError, match=r"'model.float.onnx' has input x: float32\[\?, 4\], 'other.onnx'"
    ):
        run_bench(Request(settings={}), finished, [finished.float_model, tmp_path / "other.onnx"], FEW)
    onnx.save(onnx.parser.parse_model(text.replace("x", "z")), tmp_path / "named.onnx")
    (tmp_path / "sub").mkdir()
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sub" / "model.float.onnx")
    with pytest.raises(ModelInputError, match=r"'ptq-run.model.float.onnx' has .*sub.model.float.onnx' has"):
        same = [finished.float_model, tmp_path / "sub" / "model.float.onnx"]
        run_bench(Request(settings={}), finished, same, FEW)
    with pytest.raises(ModelInputError, match=r"'named\.onnx' has no input 'x'"):
        run_bench(Request(settings={}), finished, [finished.float_model, tmp_path / "named.onnx"], FEW)


def test_a_fixed_batch_is_kept(finished, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,5] x) => (float[3,5] y) { y = Neg(x) }"""
    path = tmp_path / "fixed.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert run_bench(Request(settings={}), finished, [path], FEW).latency.batch == 3
    with pytest.raises(RecipeValueError, match="--batch is 4, but the model takes batches of 3"):
        run_bench(Request(settings={}), finished, [path], BenchOptions(batches=(4,), runs=1))


def test_a_size_that_one_model_fixes_holds_for_all(finished, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,T] x) => (float[N,T] y) { y = Neg(x) }"""
    paths = [tmp_path / "open.onnx", tmp_path / "fixed.onnx"]
    for path, shape in zip(paths, ("N,T", "3,5"), strict=True):
        onnx.save(onnx.parser.parse_model(text.replace("N,T", shape)), path)
    found = run_bench(Request(settings={"threads": 1}), finished, paths, FEW)
    assert (found.latency.batch, found.inputs[0].shape) == (3, (3, 5))


SQUARE = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,H] x) => (float[N,H] y)
    <float[6] w = {1, 2, 3, 4, 5, 6}> { y = Mul(x, w) }"""


@pytest.fixture
def square(tmp_path):
    """A model that says it takes any width, and takes 6, in a run that was calibrated on 3 such samples."""
    run = RunDirectory(tmp_path / "square")
    run.path.mkdir()
    onnx.save(onnx.parser.parse_model(SQUARE), run.float_model)
    np.savez(tmp_path / "wide.npz", x=np.arange(18, dtype=np.float32).reshape(3, 6))
    run.recipe.write_text('[calibration]\ndata = "../wide.npz"\n')
    return run


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_samples_are_those_of_the_run(square, batch):
    options = BenchOptions(batches=(batch,), runs=5)
    found = run_bench(Request(settings={"threads": 1}), square, [square.float_model], options)
    assert (Path(found.data).name, found.inputs[0].shape, found.data_faults) == ("wide.npz", (batch, 6), ())


def test_a_shape_that_is_asked_for_is_made_up(square):
    request = Request(settings={"threads": 1, "input_shape": {"x": [2, 6]}})
    found = run_bench(request, square, [square.float_model], FEW)
    assert (found.data, found.inputs[0].shape, found.latency.batch) == ("made-up inputs", (2, 6), 2)


def test_without_its_data_inputs_are_made_up_and_a_failure_says_so(square, tmp_path):
    (tmp_path / "wide.npz").unlink()
    with pytest.raises(RuntimeFailedError) as caught:
        run_bench(Request(settings={"threads": 1}), square, [square.float_model], FEW)
    assert caught.value.hint.startswith("the inputs were made up: x: float32[1, 128]; pass --data")
    square.recipe.write_text('[calibration]\ndata = "gone.npz"\n[model.input_shape]\nx = [9, 6]\n')
    found = run_bench(Request(settings={"threads": 1}), square, [square.float_model], FEW)
    assert (found.data, found.inputs[0].shape) == ("made-up inputs", (1, 6)), "its shape, for one sample"
    assert len(found.data_faults) == 1 and "gone.npz" in found.data_faults[0]


def test_made_up_indices_stay_in_a_table(finished, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[N,T] ids) => (float[N,T] y)
        <float[2] table = {1, 2}> { y = Gather(table, ids) }"""
    path = tmp_path / "words.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    found = run_bench(Request(settings={"input_shape": {"ids": [2, 7]}}), finished, [path], FEW)
    assert [spec.shape for spec in found.inputs] == [(2, 7)]
    assert found.inputs[0].dtype == np.int64


def test_each_batch_is_run_with_each_number_of_threads_and_once(finished):
    told = []
    options = BenchOptions(batches=(4, 1, 4), threads=(2, 1), runs=5)
    found = run_bench(Request(settings={}), finished, options=options, progress=told.append)
    assert told[-1].stage == "measuring 4 combinations"
    scenarios = [(item.latency.batch, item.latency.threads) for item in found.scenarios]
    assert scenarios == [(4, 2), (4, 1), (1, 2), (1, 1)]
    assert found.scenarios[0].inputs[0].shape == (4, 4)
    assert found.scenarios[0].profiles == ()


def test_a_profile_has_every_node_and_adds_up_to_a_run(finished):
    options = BenchOptions(runs=5, profile=True, threads=(1,))
    (scenario,) = run_bench(Request(settings={}), finished, options=options).scenarios
    for nodes, model, name in zip(
        scenario.profiles, scenario.latency.models, ("model.float.onnx", "model_int8.onnx"), strict=True
    ):
        graph = onnx.load(finished.path / name).graph
        assert [node.operator for node in nodes] == [node.op_type for node in graph.node]
        assert sum(node.microseconds for node in nodes) == pytest.approx(1e6 * model.p50)

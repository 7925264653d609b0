"""What verify says of a run's model, of another's, and of one that was spoilt."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.core.errors import InvalidOnnxError, ModelFormatError, UsageError
from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.pipeline.run_verify import VerifyOptions, run_verify
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.run_directory import RunDirectory


def verify(run, model=None, share=None, **settings):
    made_up = settings.pop("made_up", False)
    return run_verify(Request(settings=settings), run, model, VerifyOptions(share, made_up))


def spoil(run: RunDirectory, change) -> Path:
    model = onnx.load(run.quantized_model)
    change(model)
    path = run.path / "spoilt.onnx"
    onnx.save(model, path)
    return path


def test_a_runs_model_is_all_integers_and_compared_on_its_data(finished):
    found = verify(finished, share=1.0)
    (gemm,) = [item for item in found.operators if item.op == "Gemm"]
    assert (gemm.placement, gemm.kernel, gemm.multiply_accumulates) == ("integer", "QGemm", 24)
    assert (found.integer_share, found.share_passes, found.verdict) == (1.0, True, "pass")
    assert found.made_by.startswith("ptq ")
    assert found.comparison.samples == 10
    assert Path(found.comparison.data).name == "calib.npz"
    assert found.comparison.differences[0].steps < 2
    assert found.assumed == {}


def test_a_gemm_whose_input_is_float_misses_the_share(finished):
    def unquantize(model):
        gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
        gemm.input[0] = "x"
        kept = [node for node in model.graph.node if not node.name.startswith("x/")]
        del model.graph.node[:]
        model.graph.node.extend(kept)

    found = verify(finished, spoil(finished, unquantize), share=0.5)
    (gemm,) = [item for item in found.operators if item.op == "Gemm"]
    assert (gemm.placement, gemm.reason) == ("float", "its input 'x' is not quantized: it is a model input")
    assert (found.integer_share, found.share_passes, found.verdict) == (0.0, False, "fail")
    assert verify(finished, spoil(finished, unquantize)).verdict == "pass"


def test_a_broken_rule_fails_without_any_limit(finished):
    def shift(model):
        for tensor in model.graph.initializer:
            if tensor.name.endswith("weight.zero_point"):
                array = numpy_helper.to_array(tensor) + np.int8(3)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    found = verify(finished, spoil(finished, shift))
    assert {fault.rule for fault in found.faults} == {"zero points"}
    assert found.verdict == "fail"


def test_a_kernel_that_computes_something_else_shows_in_the_outputs(finished):
    def widen(model):
        for node in model.graph.node:
            if node.op_type == "Gemm":
                bias = np.full(6, 1000, np.int32)
                scale = np.full(6, 0.5, np.float32)
                model.graph.initializer.append(numpy_helper.from_array(bias, "b"))
                model.graph.initializer.append(numpy_helper.from_array(scale, "bs"))
                restore = onnx.helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], "restore", axis=0)
                node.input.append("bd")
        model.graph.node.insert(0, restore)

    found = verify(finished, spoil(finished, widen))
    assert {fault.rule for fault in found.faults} == {"biases"}
    assert found.comparison.differences[0].sqnr_db < 10


def test_the_work_is_that_of_one_sample_of_the_data(finished):
    assert verify(finished).work == 24


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(finished, share):
    with pytest.raises(UsageError, match="expected a share from 0 to 1"):
        verify(finished, share=share)


def test_a_damaged_model_is_refused(finished, tmp_path):
    path = tmp_path / "half.onnx"
    path.write_bytes(finished.quantized_model.read_bytes()[:300])
    with pytest.raises((ModelFormatError, InvalidOnnxError)):
        verify(finished, path)


def test_an_opset_that_is_too_old_is_refused(finished, tmp_path):
    text = """<ir_version: 7, opset_import: ["" : 12]> g (float[N,4] x) => (float[N,4] y)
        <float s = {0.02}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "old.onnx")
    with pytest.raises(InvalidOnnxError, match="has opset 12, target 'ort-cpu' needs 13 or later"):
        verify(finished, tmp_path / "old.onnx")


def test_a_model_of_constants_that_are_nodes_and_have_no_names_is_read(finished, tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,2] y) {
        s = Constant<value = float {0.02}>() z = Constant<value = uint8 {128}>()
        w = Constant<value = int8[4,2] {1, 2, 3, 4, 5, 6, 7, 8}>() k = Constant<value = float {0.1}>()
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, k)
        y = MatMul(d, e) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "plain.onnx")
    found = verify(finished, tmp_path / "plain.onnx", made_up=True)
    assert [(item.op, item.placement) for item in found.operators] == [("MatMul", "integer")]
    assert found.verdict == "pass"


CONTRIB = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[N,4] x) => (float[N,2] y)
    <float s = {0.02}, uint8 z = {128}, int8[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float k = {0.1}> {
    u = com.microsoft.QuickGelu(x) q = QuantizeLinear(u, s, z) d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(w, k) y = MatMul(d, e) }"""


def test_a_shape_that_cannot_be_inferred_is_learnt_from_a_run(finished, tmp_path):
    onnx.save(onnx.parser.parse_model(CONTRIB), tmp_path / "contrib.onnx")
    alone = verify(finished, tmp_path / "contrib.onnx", share=0.5)
    assert [item.op for item in alone.operators if item.multiply_accumulates is None] == ["MatMul"]
    found = verify(finished, tmp_path / "contrib.onnx", share=0.5, made_up=True)
    assert (found.work, found.integer_share, dict(found.unknown)) == (8, 1.0, {})


def test_a_model_for_a_target_of_ones_own_is_not_held_against_another(run, request_with, tmp_path):
    Path("own.toml").write_text('name = "own"\ndescription = "as generic"\nextends = "generic"\n')
    run_calibrate(request_with(target="./own.toml"), run)
    run_export(request_with(target="./own.toml"), run)
    assert run_verify(Request(settings={}), run).target == "own"  # The recipe beside it names the table.
    alone = tmp_path / "elsewhere" / "model.onnx"
    alone.parent.mkdir()
    alone.write_bytes(run.quantized_model.read_bytes())
    for look in (
        lambda: run_verify(Request(settings={}), run, alone),
        lambda: run_inspect(Request(settings={}, model=alone)),
    ):
        with pytest.raises(
            UsageError, match="the model was made for target 'own', which is not one of ptq's own"
        ):
            look()
    assert run_verify(Request(settings={"target": "generic"}), run, alone).target == "generic"

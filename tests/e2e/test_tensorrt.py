"""The presets for TensorRT: what stands in the file, what it computes, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.quantized_file import open_quantized
from ptq_cli.runtime.session import Kernels, Session
from ptq_cli.setup.run_directory import RunDirectory
from tests.each_case import each_case, table
from tests.unit.plan.graphs import build, serialized

RESIDUAL = """(float[N,16,8,8] x) => (float[N,24] y)
<float[32,16,3,3] w, float[32] b, float[32,32,3,3] v, float[32,32,1,1] u, float[32,24] m, float[24] t> {
  c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) d = Conv<pads=[1,1,1,1]>(r, v) s = Add(d, r) a = Relu(s)
  e = Conv(a, u) p = GlobalAveragePool(e) f = Flatten(p) g = MatMul(f, m) h = Add(g, t) y = Softmax(h) }"""
HALF, SINGLE, E4M3 = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.FLOAT8E4M3FN
MANY = 64


@pytest.fixture
def residual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(serialized(build(RESIDUAL)))
    x = np.random.default_rng(0).standard_normal((MANY, 16, 8, 8)).astype(np.float32)
    np.savez("x.npz", x=x)
    return tmp_path


def typed(path: str) -> ir.Model:
    """Read a file, with the types of all values, which it leaves to whoever reads it."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True))


def test_fp8_is_written_as_modelopt_does(residual: Path, ptq: Any) -> None:
    outcome = ptq("quantize model.onnx --data x.npz --preset fp8 --eval-data x.npz --min sqnr_db=20 --json")
    assert outcome.status == 0, outcome
    model = typed("ptq-run/model_fp8.onnx")
    assert model.opset_imports[""] >= 19
    assert [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)] == [SINGLE, SINGLE]
    computed = {
        node: node.outputs[0].dtype for node in model.graph if node.op_type not in ("Cast", "QuantizeLinear")
    }
    assert set(computed.values()) == {HALF}, "a strongly typed network takes each type from the file"
    for node in (node for node in model.graph if node.op_type in ("Conv", "MatMul")):
        data, weight = (dequantized_by(value) for value in node.inputs[:2])
        for pair in (data, weight):
            scale, zero = (value.const_value for value in pair.inputs[1:3])
            assert (scale.dtype, zero.dtype) == (HALF, E4M3) and not zero.numpy().any()
        assert weight.inputs[0].const_value.dtype == E4M3, "no QuantizeLinear rounds it again"
        assert data.inputs[1].const_value.size == 1
        assert (
            weight.inputs[1].const_value.size == weight.inputs[0].shape[weight.attributes.get_int("axis", 1)]
        )
    others = {
        node.op_type for node in model.graph for value in node.inputs if dequantized_by(value) is not None
    }
    assert others == {"Conv", "MatMul", "Add"}
    largest = np.abs(np.load("x.npz")["x"]).max()
    first = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert first.inputs[1].const_value.numpy() == np.float16(largest / 448)
    assert ptq("verify").status == 0
    layers = json.loads(ptq("inspect model.onnx --preset fp8 --json").out)["layers"]
    [reason] = [layer["reason"] for layer in layers if layer["op"] == "GlobalAveragePool"]
    assert "float8e4m3fn" in reason or "not" in reason


@pytest.mark.parametrize("preset", ["fp8", "int8"])
def test_the_file_computes_what_the_reference_evaluator_does(preset: str, residual: Path, ptq: Any) -> None:
    words = (
        f"quantize model.onnx --data x.npz --preset {preset} --set quantization.float_type=float32 "
        "--set 'override=:op=Softmax,quantize=false'"
    )
    assert ptq(words).status == 0
    x = np.load("x.npz")["x"][:4]
    content = RunDirectory(Path("ptq-run")).quantized_model.read_bytes()
    [wanted] = ReferenceEvaluator(onnx.load_from_string(content)).run(None, {"x": x})
    for optimize in (False, True):
        # As ptq runs files for GPUs: no sum saturates, whatever this processor does.
        session = Session(content, threads=1, optimize=optimize, kernels=Kernels(exact_sums=True))
        [found] = session.run({"x": x})
        # Between int8 tensors, ONNX Runtime makes an int32 bias, which is rounded once more.
        assert np.abs(found - wanted).max() < (5e-3 if optimize else 1e-5) * np.abs(wanted).max()


def test_int8_is_symmetric_and_float16_besides(residual: Path, ptq: Any) -> None:
    assert (
        ptq("quantize model.onnx --data x.npz --preset int8 --eval-data x.npz --min sqnr_db=25").status == 0
    )
    model = typed("ptq-run/model_int8f16.onnx")
    pairs = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    for pair in pairs:
        scale, zero = (value.const_value for value in pair.inputs[1:3])
        assert (scale.dtype, zero.dtype) == (HALF, ir.DataType.INT8) and not zero.numpy().any()
    assert ptq("verify").status == 0
    assert json.loads(ptq("verify --json").out)["faults"] == []


@each_case(
    "words, code, says, hint",
    table("""
    --set weights.dtype=float8e4m3fn | PTQ-PLAN-002 | 'ort-cpu' has weights of int8 | choose another target
    --set activations.dtype=float8e4m3fn | PTQ-PLAN-002 | asks for float8e4m3fn | choose another target
    --set quantization.float_type=float16 | PTQ-RECIPE-003 | in float32 | such as tensorrt
    --set weights.dtype=float8e4m3 | PTQ-RECIPE-003 | expects 'float8e4m3fn' or | weights.dtype
    --preset fp8 --weight-bits 4 | PTQ-RECIPE-003 | with 8 | leave bits out
    --preset fp8 --amax mse | PTQ-RECIPE-003 | needs evenly spaced steps | max or percentile
    --preset fp8 --set amax.weight_method=entropy | PTQ-RECIPE-003 | needs evenly spaced steps \
        | max or percentile
    --target tensorrt --set weights.dtype=float8e4m3fn | PTQ-PLAN-002 \
        | multiply weights of float8e4m3fn by activations of integers | the same float type
"""),
)
def test_what_cannot_be_is_refused(words: str, code: str, says: str, hint: str, refuse: Any) -> None:
    refuse(f"quantize model.onnx --data calib.npz --set export.prefer=size {words}", code, says, hint=hint)


DENSE = """(float[N,8,32] x) => (float[N,8,24] y)
<float[32,64] w, float[64] b, float[64,40] v, float[40,24] u> {
  a = MatMul(x, w) h = Add(a, b) r = Relu(h) c = MatMul(r, v) y = MatMul(c, u) }"""


@pytest.fixture
def dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(serialized(build(DENSE)))
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((16, 8, 32)).astype(np.float32))
    return tmp_path


def test_nvfp4_is_written_as_modelopt_does(dense: Path, ptq: Any) -> None:
    words = "quantize model.onnx --data x.npz --preset nvfp4 --eval-data x.npz --min sqnr_db=10 --json"
    outcome = ptq(words)
    assert outcome.status == 0, outcome
    warnings = json.loads(Path("ptq-run/report.json").read_text())["warnings"]
    assert "other_operators" in {item["code"] for item in warnings}
    model = ir.load("ptq-run/model_fp4.onnx")
    assert model.opset_imports[""] == 23 and model.opset_imports["trt"] == 1
    nodes = {node.name: node for node in model.graph}
    for name in "ac":
        cast, turned = (value.producer() for value in nodes[name].inputs)
        data, weight = cast.inputs[0].producer(), turned.inputs[0].producer().inputs[0].producer()
        types = (cast.op_type, turned.op_type, turned.inputs[0].producer().op_type)
        assert types == ("Cast", "Cast", "Transpose")
        for pair in (data, weight):
            assert pair.op_type == "DequantizeLinear"
            assert (pair.attributes["axis"].value, pair.attributes["block_size"].value) == (-1, 16)
        assert weight.inputs[0].const_value.dtype == ir.DataType.FLOAT4E2M1
        scales = weight.inputs[1].producer()
        assert scales.inputs[0].const_value.dtype == E4M3 and scales.inputs[1].const_value.dtype == SINGLE
        dynamic = data.inputs[0].producer()
        assert (dynamic.domain, dynamic.op_type) == ("trt", "TRT_FP4DynamicQuantize")
        assert dynamic.inputs[1] is data.inputs[1].producer().inputs[1]
    assert nodes["y"].inputs[1].const_value.dtype == HALF, "40 inputs are not a multiple of 16"
    largest = np.abs(np.load("x.npz")["x"]).max()
    assert nodes["x/TRT_FP4DynamicQuantize"].inputs[1].const_value.numpy() == pytest.approx(largest / 2688)
    verified = ptq("verify --json")
    assert verified.status == 0, verified
    placed = {item["name"]: item["placement"] for item in json.loads(verified.out)["operators"]}
    assert (placed["a"], placed["c"], placed["y"]) == ("integer", "integer", "float")


def test_what_looks_at_integers_refuses_floats(dense: Path, ptq: Any) -> None:
    assert ptq("quantize model.onnx --data x.npz --preset nvfp4").status == 0
    outcome = ptq("analyze --eval-data x.npz")
    assert (outcome.status, "need integers" in outcome.err) == (2, True)


LANGUAGE = """(float[N,8,128] x) => (float[N,8,24] y)
<float[128] g, float[128] s, float[128,64] w, float[64,48] v, float[48,24] u> {
  n = LayerNormalization(x, g, s) a = MatMul(n, w) r = Relu(a) c = MatMul(r, v) y = MatMul(c, u) }"""


def test_int4_awq_is_written_as_modelopt_does(tmp_path: Path, ptq: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(serialized(build(LANGUAGE)))
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((64, 8, 128)).astype(np.float32))
    words = "quantize model.onnx --data x.npz --preset int4_awq --eval-data x.npz --min sqnr_db=15 --json"
    outcome = ptq(words)
    assert outcome.status == 0, outcome
    model = typed("ptq-run/model_q4f16.onnx")
    assert model.opset_imports[""] == 21
    nodes = {node.name: node for node in model.graph}
    pair = dequantized_by(nodes["a"].inputs[1])
    assert pair is not None and len(pair.inputs) == 2, "no zero point"
    assert (pair.attributes["axis"].value, pair.attributes["block_size"].value) == (0, 128)
    values, scales = (value.const_value for value in pair.inputs)
    assert (values.dtype, scales.dtype, scales.shape) == (ir.DataType.INT4, HALF, (1, 64))
    assert [dequantized_by(nodes[name].inputs[1]) for name in "cy"] == [None, None]
    assert "QuantizeLinear" not in {node.op_type for node in model.graph}
    assert json.loads(ptq("verify --json").out)["faults"] == []
    layers = {
        item["name"]: item
        for item in json.loads(ptq("inspect model.onnx --preset int4_awq --json").out)["layers"]
    }
    assert "48 inputs, which blocks of 128 do not divide" in layers["y"]["reason"]


def _as_blocks_of_8(model: ir.Model) -> None:
    _four_bit(model).attributes["block_size"] = ir.AttrInt64("block_size", 8)


def _along_the_outputs(model: ir.Model) -> None:
    _four_bit(model).attributes["axis"] = ir.AttrInt64("axis", 0)


def _with_plain_scales(model: ir.Model) -> None:
    scales = ir.val("plain", dtype=SINGLE, const_value=ir.tensor(np.ones((64, 2), np.float32), name="plain"))
    model.graph.register_initializer(scales)
    _four_bit(model).replace_input_with(1, scales)


def _of_another_type(model: ir.Model) -> None:
    _dynamic(model).attributes["scale_type"] = ir.AttrInt64("scale_type", 1)


def _with_a_float_factor(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.name == "a")
    value = ir.val("plain", dtype=HALF, const_value=ir.tensor(np.ones((32, 64), np.float16), name="plain"))
    model.graph.register_initializer(value)
    node.replace_input_with(1, value)


def _four_bit(model: ir.Model) -> ir.Node:
    return next(node for node in model.graph if node.name == "w/DequantizeLinear")


def _dynamic(model: ir.Model) -> ir.Node:
    return next(node for node in model.graph if node.name == "x/TRT_FP4DynamicQuantize")


def test_each_broken_rule_of_nvfp4_is_named(dense: Path, ptq: Any) -> None:
    assert ptq("quantize model.onnx --data x.npz --preset nvfp4").status == 0
    target = load_target("tensorrt")
    assert not list(target_faults(open_quantized(Path("ptq-run/model_fp4.onnx")), target))
    for change, says in (
        (_as_blocks_of_8, "has blocks of 8, but the target expects 16"),
        (_along_the_outputs, "has blocks along axis 0, but the target expects the last one"),
        (_with_plain_scales, "are not float8e4m3fn behind a DequantizeLinear"),
        (_of_another_type, "has scale_type 1, but the target expects 17"),
        (_with_a_float_factor, "one factor of MatMul 'a' is float4e2m1, and the other is not"),
    ):
        model = open_quantized(Path("ptq-run/model_fp4.onnx"))
        change(model)
        assert any(says in fault.text for fault in target_faults(model, target)), says


@each_case("zero, warned, status", [(128, False, 0), (100, True, 3)])
def test_pairs_that_a_model_brought_are_signed_or_a_warning_says_what_they_break(
    tmp_path, monkeypatch, ptq, zero, warned, status
):
    monkeypatch.chdir(tmp_path)
    graph = f"""(float[N,4,8,8] x) => (float[] y) <float[4,4,3,3] w, float[4,4,1,1] u, float s = {{0.03}},
        uint8 z = {{{zero}}}> {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        c = Conv(d, w) r = Relu(c) y = Conv(r, u) }}"""
    Path("model.onnx").write_bytes(serialized(build(graph)))
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32))
    words = "quantize model.onnx --data x.npz --target tensorrt --set export.prefer=size --recover none"
    made = ptq(words)
    assert made.status == 0
    broken = "warning: what was quantized already, and is kept, breaks rules of tensorrt: 'q' is uint8"
    assert (broken in made.err.replace("\n", " ")) is warned
    assert ptq("verify").status == status

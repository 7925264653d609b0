"""Kernels are counted by what ONNX Runtime makes of a model."""

from ptq_cli.qdq.proof.fusion import count_kernels
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import build, quantized, serialized


def test_a_float_model_has_float_kernels_only():
    counts = count_kernels(serialized(build(CASES["residual_block"].graph)))
    assert sum(counts.integer.values()) == 0
    assert counts.floating["Conv"] == 3


def test_a_quantized_model_has_integer_kernels():
    counts = count_kernels(serialized(quantized(build(CASES["residual_block"].graph))))
    assert counts.integer["Conv"] == 3
    assert counts.integer["Add"] == 1
    assert sum(counts.floating.values()) == 0


def test_a_model_is_counted_from_its_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(serialized(quantized(build(CASES["gemm_relu_gemm"].graph))))
    assert count_kernels(path).integer["Gemm"] + count_kernels(path).integer["MatMul"] == 2

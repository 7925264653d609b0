"""A model that gives a sequence of tensors beside numbers: quantized and verified, and not evaluated."""

from pathlib import Path

import numpy as np
import pytest

import ptq_cli
from ptq_cli.core.errors import MetricError, ModelInputError
from tests.graphs import parsed


def model(folder: Path) -> Path:
    """MatMul, whose result is an output, whole and split."""
    random = np.random.default_rng(0)
    graph = """(float[N,8] x) => (float[N,4] y, seq(float[N,?]) parts) {
        y = MatMul(x, w)
        parts = SplitToSequence<axis = 1>(y, two) }"""
    proto = parsed(graph, {"w": random.standard_normal((8, 4)).astype(np.float32), "two": 2})
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "data.npz", x=random.standard_normal((32, 8)).astype(np.float32))
    return folder / "model.onnx"


def test_it_is_quantized_and_verified(tmp_path: Path):
    path, data = model(tmp_path), str(tmp_path / "data.npz")
    result = ptq_cli.quantize(path, run=tmp_path / "run", data=data, threads=1)
    assert [layer.op for layer in result.export.plan.layers if layer.quantized] == ["MatMul"]
    proof = ptq_cli.verify(result.export.output, run=tmp_path / "run", data=data, threads=1)
    assert proof.verdict == "pass"
    assert [item.output for item in proof.comparison.differences] == ["y"]
    prepared = ptq_cli.prepare(path, output=tmp_path / "float.onnx", data=data)
    assert prepared.difference == 0.0


def test_its_evaluation_says_what_is_no_number(tmp_path: Path):
    path, data = model(tmp_path), str(tmp_path / "data.npz")
    with pytest.raises(MetricError, match="output 'parts' is a sequence, expected numbers"):
        ptq_cli.quantize(
            path,
            run=tmp_path / "run",
            data=data,
            eval_data=data,
            metric=["sqnr_db"],
            evaluate=True,
            threads=1,
        )


def test_an_input_that_is_a_sequence_is_refused_for_what_it_is(tmp_path: Path):
    proto = parsed("(seq(float[N,4]) s) => (float[M,4] y) { y = ConcatFromSequence<axis = 0>(s) }")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    np.savez(tmp_path / "data.npz", s=np.zeros((8, 4), np.float32))
    with pytest.raises(ModelInputError, match=r"the input 's' of 'm\.onnx' is a sequence of tensors"):
        ptq_cli.quantize(tmp_path / "m.onnx", run=tmp_path / "run", data=str(tmp_path / "data.npz"))

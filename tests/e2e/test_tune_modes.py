"""``ptq tune`` on networks with outliers: ranges at each run, or weights alone, before float."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.models.files.stored import serialize
from tests.unit.plan.graphs import build

TOKENS = """(float[n, 6, 128] x) => (float[n, 6, 16] y)
    <float[128, 64] w1, float[64] scale, float[64, 16] w2>
{
    [first] a = MatMul (x, w1)
    [normal] b = LayerNormalization (a, scale)
    [second] y = MatMul (b, w2)
}"""


def written(kind: str) -> None:
    """Write a network and samples with a large first token, or a large first channel that hardly counts."""
    random = np.random.default_rng(5)
    found = random.normal(size=(96, 6, 128)).astype("f4")
    model = build(TOKENS)
    if kind == "token":
        found[:, 0] *= 3000.0
    else:
        found[:, :, 0] *= 3000.0
        first = model.graph.initializers["w1"]
        weight = first.const_value.numpy().copy()
        weight[0] /= 10000.0
        first.const_value = ir.tensor(weight, name="w1")
    Path("model.onnx").write_bytes(serialize(model).content)
    np.savez("calib.npz", x=found)


@pytest.mark.parametrize(
    ("kind", "budget", "field", "operator"),
    [("token", 20.0, "dynamic", "MatMulInteger"), ("channel", 4.0, "weights_alone", "DequantizeLinear")],
)
def test_a_layer_with_outliers_stays_in_integers(kind, budget, field, operator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(kind)
    settings = {"threads": 1, "recover": ["none"], "prefer": "size", "budget": {"sqnr_db": budget}}
    result = ptq_cli.tune("model.onnx", data="calib.npz", run="run", **settings)
    assert result.ladder.met, [(step.name, step.sqnr_db) for step in result.ladder.steps]
    assert not result.ladder.best.in_float
    assert "first" in getattr(result.ladder.best, field)
    assert operator in {node.op_type for node in onnx.load(result.output).graph.node}
    ptq_cli.quantize(recipe="run/recipe.toml", run="again")
    assert Path("again/model.int8.onnx").read_bytes() == result.output.read_bytes()

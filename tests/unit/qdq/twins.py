"""A float model and its quantized twin, in stages."""

from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import Stage, StagedModel, cut_stages
from tests.unit.plan.graphs import build, quantized

# Three convolutions, the third added to what the first gave, and a classifier.
CHAIN = """(float[n, 3, 8, 8] x) => (float[n, 5] y)
    <float[8, 3, 3, 3] w1, float[8] b1, float[8, 8, 3, 3] w2, float[8, 8, 3, 3] w3, float[8, 5] w4>
{
    [first] c1 = Conv <pads=[1, 1, 1, 1]> (x, w1, b1)
    r1 = Relu (c1)
    [second] c2 = Conv <pads=[1, 1, 1, 1]> (r1, w2)
    r2 = Relu (c2)
    [third] c3 = Conv <pads=[1, 1, 1, 1]> (r2, w3)
    [join] sum = Add (c3, r1)
    pool = GlobalAveragePool (sum)
    flat = Flatten (pool)
    [last] y = Gemm (flat, w4)
}"""

# A stream of floats that two blocks add to, as in a transformer.
RESIDUAL = """(float[n, 6, 8] x) => (float[n, 6, 8] y)
    <float[8, 16] w1, float[16] b1, float[16, 8] w2, float[8] g, float[8] h, float[8, 8] w3>
{
    norm = LayerNormalization <axis=-1> (x, g, h)
    [up] m1 = MatMul (norm, w1)
    [up_bias] a1 = Add (m1, b1)
    act = Gelu (a1)
    [down] m2 = MatMul (act, w2)
    stream = Add (m2, x)
    norm2 = LayerNormalization <axis=-1> (stream, g, h)
    [out] m3 = MatMul (norm2, w3)
    y = Add (m3, stream)
}"""


@dataclass(frozen=True)
class Twins:
    """Both models, and the stages."""

    graphs: TwinGraphs
    stages: tuple[Stage, ...]
    staged: StagedModel


def make_twins(text: str, *, target: str = "ort-cpu", **constants: object) -> Twins:
    model = build(text, opset=20, constants=constants)  # type: ignore[arg-type]
    plan = make_plan(model, load_target(target))
    return twins_of(model, quantized(model, plan), {layer.name for layer in plan.layers if layer.quantized})


def twins_of(model: ir.Model, other: ir.Model, integer: set[str]) -> Twins:
    # As they are read from files: passes leave uses and values in another order.
    graphs = TwinGraphs(*(ir.from_proto(ir.to_proto(item)) for item in (model, other)))
    stages = cut_stages(graphs, integer)
    return Twins(graphs, stages, StagedModel(stages, graphs.pairs, model.graph.outputs[0].name or ""))

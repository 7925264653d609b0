"""Channels are padded for faster kernels: no result changes by a bit, and it can be taken back."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.target_faults import target_faults
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.qdq.write.padding import pad_channels
from tests.each_case import each_case
from tests.unit.plan.graphs import build, quantized, run, sample
from tests.unit.qdq.printer import graph_text

X = "(float[N,3,8,8] x) => (float[N,4,h,w0] y)"
BLOCK = f"""{X} <float[24,3,3,3] w, float[24] b, float[24,1,3,3] d, float[4,24,1,1] v> {{
    c = Conv(x, w, b) r = Relu(c) e = Conv<group=24, pads=[1,1,1,1]>(r, d) s = HardSwish(e)
    y = Conv(s, v) }}"""
SQUEEZED = f"""{X}
    <float[24,3,3,3] w, float[10,24,1,1] a, float[24,10,1,1] u, float[24,24,1,1] v, float[4,24,1,1] o> {{
    c = Conv(x, w) r = Relu(c) g = GlobalAveragePool(r) f = Conv(g, a) h = Relu(f) k = Conv(h, u)
    t = Sigmoid(k) m = Mul(r, t) n = Conv(m, v) p = Add(n, r) y = Conv(p, o) }}"""
OPEN = {
    "depthwise": (BLOCK, {"c": [24, 3], "e": [24, 1], "y": [4, 24]}),
    "squeezed": (
        SQUEEZED, {"c": [24, 3], "f": [10, 24], "k": [24, 10], "n": [24, 24], "y": [4, 24]},
    ),
    "weight of two layers": (
        f"""{X} <float[12,3,1,1] w, float[12,12,1,1] v, float[4,12,1,1] o> {{
        c = Conv(x, w) d = Conv(c, v) e = Conv(d, v) y = Conv(e, o) }}""",
        {"c": [12, 3], "d": [12, 12], "e": [12, 12], "y": [4, 12]},
    ),
}  # fmt: skip
CLOSED = {
    "an output": f"""{X[:-1]}, float[N,24,h,w0] c) <float[24,3,3,3] w, float[4,24,1,1] v> {{
        c = Conv(x, w) y = Conv(c, v) }}""",
    "a Concat": f"""{X} <float[24,3,3,3] w, float[24,3,3,3] u, float[4,48,1,1] v> {{
        c = Conv(x, w) d = Conv(x, u) e = Concat<axis=1>(c, d) y = Conv(e, v) }}""",
    "a Reshape": f"""{X} <float[24,3,3,3] w, float[4,24,1,1] v, int64[4] s = {{0, 24, 4, 9}}> {{
        c = Conv(x, w) e = Reshape(c, s) y = Conv(e, v) }}""",
    "groups": f"""{X} <float[24,3,3,3] w, float[24,12,1,1] u, float[4,24,1,1] v> {{
        c = Conv(x, w) d = Conv<group=2>(c, u) e = Softmax<axis=2>(d) y = Conv(e, v) }}""",
    "a mean over channels": f"""{X} <float[24,3,3,3] w, float[4,1,1,1] v, int64[1] a = {{1}}> {{
        c = Conv(x, w) d = ReduceMax(c, a) y = Conv(d, v) }}""",
    "one channel for all": f"""{X} <float[24,3,3,3] w, float[1,3,3,3] u, float[4,24,1,1] v> {{
        c = Conv(x, w) d = Conv(x, u) e = Mul(c, d) y = Conv(e, v) }}""",
}  # fmt: skip


def padded(graph: str, multiple: int = 16, of_inputs: int = 4) -> tuple[ir.Model, ir.Model]:
    model = quantized(build(graph))
    other = model.clone()
    pad_channels(other, multiple, of_inputs)
    onnx.checker.check_model(ir.to_proto(other), full_check=True)
    return model, other


@pytest.mark.parametrize("name", OPEN)
def test_it_is_exact_and_is_taken_back(name: str):
    graph, convs = OPEN[name]
    model, other = padded(graph)
    said = json.loads(other.metadata_props[MetadataKey.PADDED_CHANNELS])
    assert said == {"convs": convs, "pads": ["x/QuantizeLinear/Pad"]}
    assert [fault.text for fault in target_faults(other, load_target("ort-cpu"))] == []
    for seed in range(3):
        inputs = sample(model, seed)
        for optimize in (False, True):
            one, two = (run(item, inputs, optimize=optimize)[0] for item in (model, other))
            assert np.array_equal(one, two)
    sizes = {node.name: node.inputs[1].shape for node in other.graph if node.op_type == "Conv"}
    wide = [size for shape in sizes.values() for size in shape[:2] if size not in (1, 3, 4)]
    assert wide and all(size % 16 == 0 for size in wide)
    back = without_padding(other)
    back.graph.initializers.pop("x/QuantizeLinear/Pad.pads")
    assert graph_text(back) == graph_text(model)
    for key, value in model.graph.initializers.items():
        assert np.array_equal(value.const_value.numpy(), back.graph.initializers[key].const_value.numpy())


@each_case("name", CLOSED)
def test_channels_that_something_counts_stay_as_they_are(name: str):
    _, other = padded(CLOSED[name], of_inputs=1)
    assert MetadataKey.PADDED_CHANNELS not in other.metadata_props


@each_case(
    "said",
    ["{", "[]", '{"convs": {"gone": [1, 2]}}', '{"convs": {"c": "x"}}', '{"pads": ["c", 7]}', "[" * 9999],
)
def test_metadata_that_do_not_fit_the_graph_are_refused(said: str):
    model = quantized(build(BLOCK))
    model.metadata_props[MetadataKey.PADDED_CHANNELS] = said
    with pytest.raises(InvalidOnnxError, match="padded channels"):
        without_padding(model)

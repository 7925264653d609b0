"""A Conv with a Relu and all its pairs, as text that tests change, and its quantized constants."""

import numpy as np
import onnx_ir as ir

from tests.unit.plan.graphs import build

CONV = """(float[N,3,8,8] x) => (float[N,4,6,6] y) <
    float s = {0.02}, uint8 z = {128}, uint8 zero = {0}, int8 i = {0}, float k = {0.01}, float p = {0.0002},
    int8[4,3,3,3] w, int32[4] b, float[4,3,3,3] f> {
    qx = QuantizeLinear(x, s, z)
    dx = DequantizeLinear(qx, s, z)
    dw = DequantizeLinear(w, k, i)
    db = DequantizeLinear(b, p)
    c = Conv(dx, dw, db)
    r = Relu(c)
    qr = QuantizeLinear(r, s, zero)
    dr = DequantizeLinear(qr, s, zero)
    y = Sigmoid(dr) }"""


def conv(*changes: tuple[str, str], opset: int = 20) -> ir.Model:
    text = CONV
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-60, 61, (4, 3, 3, 3)).astype(np.int8),
        "b": random.integers(-900, 901, 4).astype(np.int32),
    }
    return build(text, opset, constants)

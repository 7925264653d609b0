"""What is cut out of a file whose kernels are not simply parts of it."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser

from ptq_cli.devices.integer_kernels import IntegerKernels

MOVED = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 9, 9, 4] x) => (float[n, 9, 9, 4] y)
<float sx = {0.01}, uint8 zx = {120}, float sw = {0.01}, int8 zw = {0}, float sc = {0.09}, uint8 zc = {131}> {
    xq = QuantizeLinear(x, sx, zx)
    xd = DequantizeLinear(xq, sx, zx)
    t = Transpose <perm = [0, 3, 1, 2]> (xd)
    tq = QuantizeLinear(t, sx, zx)
    td = DequantizeLinear(tq, sx, zx)
    wq = QuantizeLinear(w, sw, zw)
    wd = DequantizeLinear(wq, sw, zw)
    c = Conv <kernel_shape = [1, 1]> (td, wd)
    cq = QuantizeLinear(c, sc, zc)
    cd = DequantizeLinear(cq, sc, zc)
    r = Add(cd, td)
    rq = QuantizeLinear(r, sc, zc)
    rd = DequantizeLinear(rq, sc, zc)
    y = Transpose <perm = [0, 2, 3, 1]> (rd)
}"""


def operators(content: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(content).graph.node]


def test_a_kernel_that_reads_what_is_not_in_the_file_is_the_fused_operator(tmp_path: Path) -> None:
    model = parser.parse_model(MOVED)
    weight = np.linspace(-0.6, 0.6, 16, dtype=np.float32).reshape(4, 4, 1, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    x = np.random.default_rng(1).normal(size=(2, 9, 9, 4)).astype(np.float32)
    conv, add = IntegerKernels(ir.from_proto(model), tmp_path).cases([{"x": x}])
    assert (conv.op, operators(conv.model)[-2:]) == ("QLinearConv", ["Conv", "QuantizeLinear"])
    assert (add.op, operators(add.model)) == ("QLinearAdd", ["QLinearAdd"])
    assert [len(case.runs) for case in (conv, add)] == [2, 2]
    for inputs, expected in add.runs:
        assert len(inputs) == 2 and expected["rq"].value.shape == (2, 4, 9, 9)
    extreme = conv.runs[1][0]["tq"]
    assert set(np.unique(extreme)) == {0, 255}


def test_a_file_in_float_has_none(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Neg(x) }"""
    model = ir.from_proto(parser.parse_model(text))
    assert IntegerKernels(model, tmp_path).cases([{"x": np.ones(2, np.float32)}]) == []

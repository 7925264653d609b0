"""A network for each of two sampling rates, of which an input that is fixed leaves one."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

import ptq_cli

RATES = """(float[N,1,64] x, int64 sr) => (float[N,3] y) {
    high = Constant<value = int64 {16000}>()
    last = Constant<value = int64[1] {-1}>()
    is_high = Equal(sr, high)
    y = If(is_high) <
        then_branch = wide () => (float[N,3] p) {
            h = Conv<pads=[1,1], strides=[2]>(x, conv_high)
            r = Relu(h)
            long = Shape(r)
            place = Constant<value = int64 {2}>()
            size = Gather(long, place)
            half = Constant<value = int64 {32}>()
            is_half = Equal(size, half)
            m = If(is_half) <
                then_branch = as_trained () => (float[N,4] m1) { m1 = ReduceMean<axes=[2], keepdims=0>(r) },
                else_branch = other () => (float[N,4] m2) { m2 = ReduceMax<axes=[2], keepdims=0>(r) }>
            p = MatMul(m, out_high) },
        else_branch = narrow () => (float[N,3] q) {
            h = Conv<pads=[1,1]>(x, conv_low)
            r = Relu(h)
            m = ReduceMean<axes=[2], keepdims=0>(r)
            q = MatMul(m, out_low) }>
}"""


def saved(folder: Path) -> Path:
    random = np.random.default_rng(5)
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 16]> g {RATES}')
    shapes = {"conv_high": (4, 1, 3), "conv_low": (4, 1, 3), "out_high": (4, 3), "out_low": (4, 3)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(folder / "data.npz", x=random.standard_normal((32, 1, 64)).astype(np.float32))
    return folder / "model.onnx"


def test_the_branch_that_remains_is_quantized_like_any_graph(tmp_path: Path):
    path, data, run = saved(tmp_path), str(tmp_path / "data.npz"), tmp_path / "run"
    for rate, weights in ((16000, {"conv_high", "out_high"}), (8000, {"conv_low", "out_low"})):
        output = tmp_path / f"{rate}.onnx"
        prepared = ptq_cli.prepare(path, output=output, data=data, input={"sr": rate})
        assert prepared.applied["known_branch"] == (2 if rate == 16000 else 1)
        assert prepared.difference is not None and prepared.difference < 1e-5
        graph = onnx.load(output).graph
        assert "If" not in {node.op_type for node in graph.node}
        assert [value.name for value in graph.input] == ["x"]
        assert weights <= {tensor.name for tensor in graph.initializer}
        assert not {"conv_high", "conv_low"} - weights & {tensor.name for tensor in graph.initializer}
    result = ptq_cli.quantize(path, run=run, data=data, input={"sr": 16000}, threads=1, prefer="size")
    assert [layer.op for layer in result.export.plan.layers if layer.quantized][:2] == ["Conv", "Relu"]
    assert ptq_cli.verify(run=run, threads=1).verdict == "pass"

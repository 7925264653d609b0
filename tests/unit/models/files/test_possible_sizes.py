"""A negative size before a Slice ended the process inside ONNX's inference, and inside ONNX Runtime."""

from pathlib import Path

import onnx
import pytest

import ptq_cli
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.stored import read_model
from tests.each_case import each_case

CUT = """a = Constant<value = int64[1] {0}>()
    b = Constant<value = int64[1] {2}>()
    e = Constant<value = int64[1] {1}>()
    y = Slice(z, a, b, e)"""
SPLIT = f"s = Constant<value = int64[2] {{-3,7}}>() z, q = Split<axis=1>(x, s) {CUT}"
NEGATIVE = {
    "split": (SPLIT, "'z' (Split) would have a size of -3"),
    "top_k": (
        f"s = Constant<value = int64[1] {{-3}}>() z, q = TopK<axis=1>(x, s) {CUT}",
        "(TopK) would have a size of -3",
    ),
    "pad": (
        f"s = Constant<value = int64[4] {{0,-3,0,-3}}>() z = Pad(x, s) {CUT}",
        "'z' (Pad) would have a size of -2",
    ),
    "pad_that_folding_finds": (
        f"""s = Constant<value = int64[4] {{0,-2,0,-2}}>() t = Constant<value = int64[4] {{0,1,0,1}}>()
        d = Sub(s, t) z = Pad(x, d) {CUT}""",
        "(Pad) would have a size of -2",
    ),
    "pool_larger_than_its_input": (
        f"f = Constant<value = int64[1] {{1}}>() u = Unsqueeze(x, f) z = MaxPool<kernel_shape=[9]>(u) {CUT}",
        "'z' (MaxPool) would have a size of -4",
    ),
    "inside_a_branch": (
        f"""c = Constant<value = bool {{1}}>() y = If(c) <
        then_branch = t () => (float[A,B] p) {{ {SPLIT.replace("y = ", "p = ")} }},
        else_branch = o () => (float[A,B] o1) {{ o1 = Neg(x) }}>""",
        "'z' (Split) would have a size of -3",
    ),
}


@each_case("case", NEGATIVE)
def test_a_negative_size_is_refused_by_its_node(case: str, tmp_path: Path):
    body, says = NEGATIVE[case]
    text = f'<ir_version: 8, opset_import: ["" : 13]> g (float[2,4] x) => (float[A,B] y) {{ {body} }}'
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(InvalidOnnxError) as caught:
        ptq_cli.prepare(path, output=tmp_path / "float.onnx")
    assert says in caught.value.message
    assert caught.value.hint.startswith("no input fits it")
    if case != "pad_that_folding_finds":
        with pytest.raises(InvalidOnnxError):  # The commands that run a file as it is.
            read_model(path)


def test_a_convolution_without_channels_is_refused_by_its_weight(tmp_path: Path):
    graph = "g (float[2,4,6,6] x) => (float[A,B,C,D] y) { y = Conv(x, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {graph}')
    proto.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [0, 4, 3, 3], []))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidOnnxError, match=r"weight 'w' of 'y' \(Conv\) has the shape \[0, 4, 3, 3\]"):
        ptq_cli.prepare(tmp_path / "m.onnx", output=tmp_path / "float.onnx")

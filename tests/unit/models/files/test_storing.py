"""The checker's word on a model, whether its constants lie in the graph, are too many, or lie beside it."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ptq_cli
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files import storing
from ptq_cli.models.files.stored import read_model
from ptq_cli.models.files.storing import check_stored, store_model
from tests.each_case import each_case
from tests.unit.models.contents import noise
from tests.unit.plan.graphs import build

FORMS = ["whole", "large", "apart"]


def graph() -> ir.Model:
    return build(
        "(float[N,64] x) => (float[] y) <float[64,64] w> { h = MatMul(x, w)\n y = Relu(h) }",
        constants={"w": noise(64, 64)},
    )


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "large":
        monkeypatch.setattr(storing, "CHECKED_WHOLE", 1000)
    if request.param == "apart":
        monkeypatch.setattr(storing, "LARGEST_BYTES", 1000)
        monkeypatch.setattr(storing, "SMALLEST_EXTERNAL", 1000)
    return str(request.param)


def test_a_good_model_passes_and_nothing_is_left_over(form: str, tmp_path: Path) -> None:
    model = graph()
    found = store_model(model, tmp_path, "m.onnx")
    assert bool(found.data) == (form == "apart")
    check_stored(found, model, "m.onnx")
    left = [path.name for path in (found.folder or tmp_path).iterdir()]
    assert left == (["m.onnx.data"] if form == "apart" else [])


def test_a_graph_that_it_refuses_is_reported(form: str, tmp_path: Path) -> None:
    model = graph()
    model.graph.node(1).op_type = "Rellu"
    found = store_model(model, tmp_path, "m.onnx")
    assert bool(found.data) == (form == "apart")
    with pytest.raises(InvalidOnnxError) as caught:
        check_stored(found, model, "mine.onnx")
    assert caught.value.message.startswith("'mine.onnx' fails the ONNX checker: No Op registered for Rellu")
    assert caught.value.code == "PTQ-MODEL-005"


def test_constants_that_are_not_where_the_graph_says_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storing, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(storing, "SMALLEST_EXTERNAL", 1000)
    model = graph()
    found = store_model(model, tmp_path, "m.onnx")
    found.data[0].unlink()
    with pytest.raises(InvalidOnnxError, match="fails the ONNX checker"):
        check_stored(found, model, "m.onnx")


# A negative size before a Slice ended the process inside ONNX's inference, and inside ONNX Runtime.
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

"""An ONNX file that is rewritten is compared with itself, as it was."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import InvalidOnnxError, ParityError
from ptq_cli.recipe.sections import ImageSettings, ModelSettings
from ptq_cli.setup.float_model import FloatModel, make_float_model, open_source, require_known_opset

SOFTMAX = "(float[N,3,4] x) => (float[N,3,4] y) { y = Softmax<axis=1>(x) }"


def made(folder: Path, text: str, opset: int, array: np.ndarray | None = None, **options: bool) -> FloatModel:
    path = folder / "m.onnx"
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> g {text}')
    path.write_bytes(proto.SerializeToString())
    dataset = None
    if array is not None:
        np.save(folder / "x.npy", array)
        dataset = open_dataset(str(folder / "x.npy"), ImageSettings())
    return make_float_model(open_source(ModelSettings(path=str(path))), dataset, threads=1, **options)


@pytest.mark.parametrize("array", [None, np.ones((2, 3, 4), np.float32)], ids=["made_up", "data"])
def test_a_converted_model_is_compared(tmp_path: Path, array: np.ndarray | None) -> None:
    model = made(tmp_path, SOFTMAX, 11, array)
    assert model.parity is not None and model.parity < 1e-6
    assert model.compared_with == "the file's"
    assert model.prepared.notes == ("converted from opset 11 to 13",)


def test_what_nothing_was_rewritten_in_is_compared_on_request(tmp_path: Path) -> None:
    text = "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    assert made(tmp_path, text, 13).parity is None
    assert made(tmp_path, text, 13, always_compare=True).parity == 0.0


def test_a_conversion_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    # A Resize that enlarges one axis and reduces another rounds in a way that no newer one does for both.
    scales = "s = Constant<value = float[4] {1.0, 1.0, 1.5, 0.75}>()"
    with pytest.raises(ParityError) as caught:
        made(
            tmp_path,
            f'(float[N,1,4,4] x) => (float[N,1,a,b] y) {{ {scales}\n y = Resize<mode="nearest">(x, s) }}',
            10,
        )
    assert "output 'y' of the prepared graph differs from the file's by " in caught.value.message
    assert caught.value.code == "PTQ-MODEL-006"
    assert "opset 20" in caught.value.hint


CONSTANTS = """ w = Constant<value = float[2,1,1,1] {0.7, -1.3}>() s = Constant<value = float[2] {1.1, 0.7}>()
    b = Constant<value = float[2] {0.1, 0.3}>() m = Constant<value = float[2] {0.2, -0.4}>()
    v = Constant<value = float[2] {1.7, 0.6}>() r = Constant<value = float {3.99}>()
    one = Constant<value = float {1.0}>() c = Conv(x, w) n = BatchNormalization(c, s, b, m, v)
    e = Constant<value = float {3.0}>() d = Constant<value = float {6.0}>()
    z = Constant<value = float {0.0}>()
    f = Add(n, e) g = Clip(f, z, d) y0 = Div(g, d)"""


def test_a_file_that_rounding_decides_is_compared_by_its_own_differences(tmp_path: Path) -> None:
    """Each step of a logistic map doubles an error: after some, how a constant was folded is seen."""
    text = "(float[N,1,8,8] x) => (float[N,2,8,8] y) {" + CONSTANTS
    for step in range(16):
        text += f" a{step} = Sub(one, y{step}) b{step} = Mul(y{step}, a{step})"
        text += f" y{step + 1} = Mul(r, b{step})"
    array = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)
    model = made(tmp_path, text + " y = Identity(y16) }", 13, array)
    assert model.parity is not None and 1e-3 < model.parity < 0.1
    (note,) = (note for note in model.notes if note.startswith("outputs of the file itself differ by up to "))
    assert note.endswith("behind a loop that feeds itself")


def test_where_made_up_inputs_do_not_fit_nothing_is_compared(tmp_path: Path) -> None:
    text = "(float[N,C] x) => (float[N,D] y) { s = Constant<value = int64[2] {-1, 5}>()\n y = Reshape(x, s) }"
    assert made(tmp_path, text, 11).parity is None


def test_an_index_that_a_tie_decides_is_not_compared(tmp_path: Path) -> None:
    text = """(float[N,4] x) => (float[N,4] y, int64[N,1] i) { y = Softmax(x)
        i = ArgMax<axis=1>(y) }"""
    assert made(tmp_path, text, 11).parity is not None


def test_an_opset_that_onnx_runtime_does_not_know_is_refused(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    known = next(version for version in range(newest, 0, -1) if _is_known(version))
    assert known >= 25
    if known == newest:
        pytest.skip("the installed onnx knows no newer opset than ONNX Runtime")
    with pytest.raises(InvalidOnnxError) as caught:
        made(tmp_path, "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }", newest)
    message = (
        f"model 'm.onnx' has opset {newest}, but the installed ONNX Runtime supports only {known} and older"
    )
    assert caught.value.message == message
    assert caught.value.code == "PTQ-MODEL-005"


def _is_known(version: int) -> bool:
    try:
        require_known_opset(version, "m.onnx")
    except InvalidOnnxError:
        return False
    return True

"""The checker's word on a model, whether its constants lie in the graph, are too many, or lie beside it."""

from pathlib import Path

import onnx_ir as ir
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files import stored
from ptq_cli.models.files import stored as checker
from ptq_cli.models.files.stored import check_stored, store_model
from tests.unit.models.loading.sources import noise
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
        monkeypatch.setattr(checker, "CHECKED_WHOLE", 1000)
    if request.param == "apart":
        monkeypatch.setattr(stored, "LARGEST_BYTES", 1000)
        monkeypatch.setattr(stored, "SMALLEST_EXTERNAL", 1000)
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
    monkeypatch.setattr(stored, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(stored, "SMALLEST_EXTERNAL", 1000)
    model = graph()
    found = store_model(model, tmp_path, "m.onnx")
    found.data[0].unlink()
    with pytest.raises(InvalidOnnxError, match="fails the ONNX checker"):
        check_stored(found, model, "m.onnx")

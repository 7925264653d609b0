"""Sparse constants are read as the dense ones that they stand for."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.loading.onnx_source import load_onnx
from tests.each_case import each_case
from tests.unit.models.contents import external, linear, noise, operators, saved
from tests.unit.plan.graphs import run

PLACES = [1, 299, 301, 1199]


def sparse(places: np.ndarray, dims: tuple[int, ...] = (4, 300), values: int = 4) -> onnx.SparseTensorProto:
    array = np.arange(1, values + 1, dtype=np.float32)
    tensors = numpy_helper.from_array(array, "w"), numpy_helper.from_array(places, "w.places")
    return helper.make_sparse_tensor(*tensors, dims)


def sparse_model(tensor: onnx.SparseTensorProto, *, as_node: bool = False) -> onnx.ModelProto:
    model = linear()
    del model.graph.initializer[:]
    if as_node:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    else:
        model.graph.sparse_initializer.append(tensor)
    return model


@each_case("as_node", [False, True], ids=["initializer", "node"])
@each_case("by_axis", [False, True], ids=["flat", "by_axis"])
def test_it_computes_what_onnxruntime_computes(tmp_path: Path, as_node: bool, by_axis: bool):
    places = np.array(PLACES)
    tensor = sparse(np.stack(np.unravel_index(places, (4, 300)), axis=1) if by_axis else places)
    dense = np.zeros(1200, np.float32)
    dense[places] = [1, 2, 3, 4]
    loaded = load_onnx(saved(sparse_model(tensor, as_node=as_node), tmp_path / "model.onnx"))
    assert operators(loaded)[-1] == "MatMul"
    np.testing.assert_allclose(run(loaded, {"x": noise(2, 4)})[0], noise(2, 4) @ dense.reshape(4, 300))


WRONG = {
    "a_place_behind_the_end": (sparse(np.array([1, 2, 3, 1200])), "do not fit"),
    "a_place_before_the_beginning": (sparse(np.array([-1, 2, 3, 4])), "do not fit"),
    "fewer_values": (sparse(np.array(PLACES), values=3), "do not fit"),
    "far_too_large": (sparse(np.array(PLACES), dims=(2**20, 2**40)), "too large"),
}


@each_case("case", WRONG)
def test_what_cannot_be_is_refused(tmp_path: Path, case: str):
    tensor, message = WRONG[case]
    with pytest.raises(InvalidOnnxError, match=message):
        load_onnx(saved(sparse_model(tensor), tmp_path / "model.onnx"))


def test_no_other_file_is_read_for_one(tmp_path: Path):
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    tensor = sparse(np.array(PLACES))
    tensor.values.ClearField("raw_data")
    tensor.values.data_location = onnx.TensorProto.EXTERNAL
    tensor.values.external_data.add(key="location", value="secret.bin")
    with pytest.raises(InvalidOnnxError, match="do not fit"):
        load_onnx(saved(sparse_model(tensor), tmp_path / "model.onnx"))


def test_beside_external_data_it_is_refused(tmp_path: Path):
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.node.append(helper.make_node("Constant", [], ["k"], sparse_value=sparse(np.array(PLACES))))
    with pytest.raises(InvalidOnnxError, match="has sparse constants and external data"):
        load_onnx(saved(model, path))

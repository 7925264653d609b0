"""A model whose tensors stay on a device gives what a plain session gives; the device here is the host."""

import gc
import weakref

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, numpy_helper
from packaging.version import Version

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.session import Session, SessionPlace
from ptq_cli.runtime.tapping import on_device
from ptq_cli.runtime.tapping.on_device import DeviceModel, as_array, device_pieces
from ptq_cli.runtime.tapping.pieces import PieceSize
from ptq_cli.runtime.tapping.taps import tap
from tests.devices import require_or_skip, use_the_host_as_cuda
from tests.unit.runtime.tapping.conftest import FLOATS, batch_of

CUDA = Device("cuda")
LARGE = PieceSize(1 << 30)


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "gpu":
        return Device(require_or_skip("cuda"))
    use_the_host_as_cuda(monkeypatch)
    return CUDA


def open_model(model, taps, device, size=LARGE, **settings):
    session = Session(tap(ir.from_proto(model), taps), threads=1, place=SessionPlace(device))
    return DeviceModel(session, taps, size, **settings)


def run_pieces(found, batch):
    parts = [found.run(piece.inputs) for piece in found.split(batch)]
    assert all(isinstance(tensor, torch.Tensor) for part in parts for tensor in part)
    return [np.concatenate([as_array(t) for t in tensors]) for tensors in zip(*parts, strict=True)], len(
        parts
    )


@pytest.mark.parametrize(("limit", "parts"), [(8, 9), (16, 5), (64, 5), (10_000, 1)])
def test_pieces_join_to_the_batch(elementwise, device, limit, parts):
    batch = batch_of(9)
    found, number = run_pieces(open_model(elementwise, ["a", "b"], device, size=PieceSize(limit)), batch)
    assert number == parts
    np.testing.assert_array_equal(found[0], -batch.inputs["x"])
    np.testing.assert_array_equal(found[1], np.abs(batch.inputs["x"]))


def test_a_batch_of_a_fixed_size_is_not_cut(elementwise, device):
    found = open_model(elementwise, ["a"], device, size=PieceSize(1, whole=True))
    assert [piece.size for piece in found.split(batch_of(5))] == [5]


def test_a_model_that_takes_no_single_sample_is_not_cut(build_model, device):
    shape = numpy_helper.from_array(np.array([2, 2, 4]), "shape")
    fixed = build_model(
        [("Reshape", ["x", "shape"], ["y"])], {"x": FLOATS}, {"y": (TensorProto.FLOAT, [2, 2, 4])}, [shape]
    )
    found = open_model(fixed, ["y"], device, size=PieceSize(1))
    (piece,) = found.split(batch_of(4))
    assert found.run(piece.inputs)[0].shape == (2, 2, 4)


def test_a_tensor_keeps_its_values_while_others_are_computed(elementwise, device):
    found = open_model(elementwise, ["a"], device)
    first = found.run({"x": np.full((3, 4), 1, np.float32)})
    second = found.run({"x": np.full((3, 4), 2, np.float32)})
    del found
    gc.collect()
    assert as_array(first[0]).tolist() == [[-1.0] * 4] * 3
    assert as_array(second[0]).tolist() == [[-2.0] * 4] * 3


def test_nothing_holds_a_tensor_that_was_given_away(elementwise, device):
    found = open_model(elementwise, ["a"], device)
    (tensor,) = found.run({"x": np.ones((3, 4), np.float32)})
    watched = weakref.ref(tensor)
    del tensor
    assert watched() is None


def test_a_run_writes_into_tensors_of_an_earlier_one_that_are_counted(elementwise, device):
    found = open_model(elementwise, ["a"], device)
    first = found.run({"x": np.full((3, 4), 1, np.float32)})
    place = first[0].data_ptr()
    found.recycle(first)
    second = found.run({"x": np.full((3, 4), 2, np.float32)})
    assert second[0].data_ptr() == place and as_array(second[0]).tolist() == [[-2.0] * 4] * 3
    found.recycle(second)
    other = found.run({"x": np.full((2, 4), 3, np.float32)})
    assert as_array(other[0]).tolist() == [[-3.0] * 4] * 2


def test_tensors_whose_sizes_depend_on_values_are_made_anew(build_model, device):
    model = build_model([("NonZero", ["x"], ["y"])], {"x": FLOATS}, {"y": (TensorProto.INT64, None)})
    found = open_model(model, ["y"], device)
    for count in (1, 3, 2):
        x = np.zeros((1, 4), np.float32)
        x[0, :count] = 1
        tensors = found.run({"x": x})
        assert as_array(tensors[0])[1].tolist() == list(range(count))
        found.recycle(tensors)


def test_pieces_follow_the_free_memory_and_the_limit(monkeypatch):
    monkeypatch.setattr(on_device, "free_memory", lambda device: 16 << 30)
    sizes = [device_pieces(CUDA, limit).most_bytes for limit in (None, 64 << 30, 8 << 30)]
    assert sizes == [2 << 30, 2 << 30, 1 << 30]
    monkeypatch.setattr(on_device, "free_memory", lambda device: 160 << 30)
    assert device_pieces(CUDA, None).most_bytes == 4 << 30


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.DOUBLE, np.float64),
        (TensorProto.INT8, np.int8),
        (TensorProto.UINT8, np.uint8),
        (TensorProto.INT64, np.int64),
        (TensorProto.BOOL, np.bool_),
    ],
)
def test_tensors_of_every_type_are_handed_over(build_model, device, kind, dtype):
    values = np.array([[0, 1, 2.7, 100]], np.float32)
    cast = build_model([("Cast", ["x"], ["y"])], {"x": FLOATS}, {"y": (kind, None)})
    cast.graph.node[0].attribute.append(_to(kind))
    (tensor,) = open_model(cast, ["y"], device).run({"x": values})
    found, wanted = as_array(tensor), values.astype(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.skipif(Version(torch.__version__) >= Version("2.14"), reason="this PyTorch takes every type")
def test_a_type_that_is_not_handed_over_is_an_error_with_a_code(build_model, device):
    kind = TensorProto.FLOAT8E4M3FN
    cast = build_model([("Cast", ["x"], ["y"])], {"x": FLOATS}, {"y": (kind, None)})
    cast.graph.node[0].attribute.append(_to(kind))
    with pytest.raises(
        RuntimeFailedError, match="a tensor cannot be handed from ONNX Runtime to PyTorch"
    ) as e:
        open_model(cast, ["y"], device).run({"x": np.ones((1, 4), np.float32)})
    assert e.value.hint == "leave 'runtime.device' out"


def _to(kind):
    from onnx import helper

    return helper.make_attribute("to", kind)

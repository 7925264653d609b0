"""Runs under way at once: the order, the errors, and the end are as if they were one by one.

A model whose tensors stay on a device gives what a plain session gives; the device here is the host.
"""

import gc
import threading
import time
import weakref
from contextlib import closing

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, numpy_helper
from packaging.version import Version

from ptq_cli.calibdata.dataset.batches import Batch
from ptq_cli.calibration.count_batches import pieces, work_ahead
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.machine import Device
from ptq_cli.runtime.session import Session, SessionPlace
from ptq_cli.runtime.tapping.pieces import DeviceModel, Forward, ForwardPass, PieceSize, as_array
from ptq_cli.runtime.tapping.taps import tap
from tests.devices import require_or_skip, use_the_host_as_cuda
from tests.unit.runtime.tapping.conftest import FLOATS, batch_of


def values_batch(*values):
    return Batch({"x": np.array(values, np.float32)}, None, tuple(str(value) for value in values))


BATCHES = [values_batch(number, number + 0.5) for number in range(9)]


def work(forward, batches=BATCHES, stop_after=lambda piece: False):
    return work_ahead(
        pieces(iter(batches), forward),
        lambda piece: piece.turn.run(piece.batch.inputs),
        forward.at_once,
        stop_after,
    )


def results(forward, batches=BATCHES):
    return [(piece.start, piece.last, arrays[0].tolist()) for piece, arrays in work(forward, batches)]


def one_pass(run, at_once=1, **rest):
    return Forward((ForwardPass(taps=("y",), run=run),), at_once, **rest)


def halves(batch):
    return [
        Batch({"x": batch.inputs["x"][i : i + 1]}, None, batch.names[i : i + 1]) for i in range(batch.size)
    ]


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_order_is_that_of_the_batches(at_once):
    def run(inputs):
        time.sleep(0.004 if int(inputs["x"][0]) % 2 else 0.0)
        return [inputs["x"] * 10]

    expected = [(0, True, [number * 10, number * 10 + 5]) for number in range(9)]
    assert results(one_pass(run, at_once)) == expected


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_error_comes_after_what_was_before_it(at_once):
    def run(inputs):
        if inputs["x"][0] == 4:
            raise RuntimeFailedError("the fifth fails")
        return [inputs["x"]]

    forward, seen = one_pass(run, at_once), []
    with pytest.raises(RuntimeFailedError, match="the fifth fails"):
        for piece, _ in work(forward):
            seen.append(piece.batch.names[0])
    assert seen == ["0", "1", "2", "3"]


def test_no_more_runs_are_under_way_than_were_asked_for():
    running, most, lock = 0, 0, threading.Lock()

    def run(inputs):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return [inputs["x"]]

    results(one_pass(run, 2))
    assert most == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_reader_that_ends_early_leaves_no_thread_behind(error):
    forward = one_pass(lambda inputs: [inputs["x"]], 2)
    with pytest.raises(error), closing(work(forward)) as computed:
        next(computed)
        raise error
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward")]


def test_each_piece_takes_every_pass():
    passes = tuple(
        ForwardPass(taps=(name,), run=lambda inputs, f=factor: [inputs["x"] * f])
        for name, factor in (("a", 1), ("b", 2))
    )
    forward = Forward(passes, 2, halves)
    found = [
        (piece.turn.taps[0], piece.start, piece.first, piece.done, piece.last, arrays[0].tolist())
        for piece, arrays in work(forward, BATCHES[:1])
    ]
    assert found == [
        ("a", 0, True, False, False, [0]),
        ("b", 0, False, True, False, [0]),
        ("a", 1, True, False, False, [0.5]),
        ("b", 1, False, True, True, [1]),
    ]


def test_nothing_later_is_begun_before_what_is_stopped_after_was_yielded():
    begun = []

    def run(inputs):
        begun.append(int(inputs["x"][0]))
        return [inputs["x"]]

    seen = []
    for piece, _ in work(one_pass(run, 3), stop_after=lambda piece: piece.batch.names[0] in "25"):
        seen.append(int(piece.batch.names[0]))
        if seen[-1] in (2, 5):
            assert sorted(begun) == seen
    assert seen == list(range(9))


CUDA = Device("cuda")


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "gpu":
        return Device(require_or_skip("cuda"))
    use_the_host_as_cuda(monkeypatch)
    return CUDA


def open_model(model, taps, device, **settings):
    session = Session(tap(ir.from_proto(model), taps), threads=1, place=SessionPlace(device))
    return DeviceModel(session, taps, **settings)


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

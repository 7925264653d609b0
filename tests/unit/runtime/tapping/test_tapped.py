"""A tapped model in pieces, in blocks and in buffers computes what a plain session computes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.pieces import PieceSize
from ptq_cli.runtime.tapping.tapped import FAST, TappedModel, block_of, open_tapped, unblock
from ptq_cli.runtime.tapping.taps import tap
from tests.unit.runtime.tapping.conftest import FLOATS, batch_of

RNG = np.random.default_rng(5)


def tapped(model: onnx.ModelProto, taps, **settings):
    return TappedModel(tap(ir.from_proto(model), taps), taps, **{"threads": 1, **settings})


def run_whole(model, taps, batch):
    return Session(tap(ir.from_proto(model), taps), threads=1).run(batch.inputs)


def run_pieces(found: TappedModel, batch, taps):
    """Run a batch piece by piece and join what each gives, in the model's order."""
    parts = []
    for piece in found.split(batch):
        arrays = found.run(piece.inputs)
        parts.append([found.in_model_order(name, a).copy() for name, a in zip(taps, arrays, strict=True)])
        found.one_pass().recycle(arrays)
    return [np.concatenate(tensors) for tensors in zip(*parts, strict=True)], len(parts)


@pytest.fixture
def convolutions(build_model):
    """32 channels fill blocks, 20 do not."""
    weights = [
        numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w0", (32, 3, 3, 3)), ("w1", (20, 32, 3, 3)), ("w2", (16, 20, 1, 1)))
    ]
    nodes = [
        ("Conv", ["x", "w0"], ["c0"]),
        ("Relu", ["c0"], ["r0"]),
        ("Conv", ["r0", "w1"], ["c1"]),
        ("Relu", ["c1"], ["r1"]),
        ("Conv", ["r1", "w2"], ["c2"]),
    ]
    image = (TensorProto.FLOAT, ["n", 3, 12, 10])
    return build_model(nodes, {"x": image}, {"c2": (TensorProto.FLOAT, None)}, weights)


@pytest.mark.parametrize(("limit", "parts"), [(8, 9), (16, 5), (64, 5), (10_000, 1)])
def test_pieces_join_to_the_batch(elementwise, limit, parts):
    batch, taps = batch_of(9), ["a", "b"]
    found, number = run_pieces(tapped(elementwise, taps, size=PieceSize(limit)), batch, taps)
    assert number == parts
    for one, other in zip(found, run_whole(elementwise, taps, batch), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_piece_holds_enough_samples_where_those_are_small(elementwise):
    batch = batch_of(40)
    small = tapped(elementwise, ["a"], size=PieceSize(16, 1000)).split(batch)
    large = tapped(elementwise, ["a"], size=PieceSize(16, 100)).split(batch)
    assert [piece.size for piece in small] == [13, 13, 14]  # 16 at the most
    assert max(piece.size for piece in large) == 6  # of 16 bytes each


def test_a_batch_whose_samples_depend_on_one_another_is_not_cut(build_model):
    axes = numpy_helper.from_array(np.array([0]), "axes")
    mean = build_model(
        [("ReduceMean", ["x", "axes"], ["m"]), ("Sub", ["x", "m"], ["d"])],
        {"x": FLOATS},
        {"d": FLOATS},
        [axes],
    )
    (piece,) = tapped(mean, ["d"], size=PieceSize(16)).split(batch_of(5))
    assert piece.size == 5


def test_a_model_that_takes_no_single_sample_is_not_cut(build_model):
    shape = numpy_helper.from_array(np.array([2, 2, 4]), "shape")
    fixed = build_model(
        [("Reshape", ["x", "shape"], ["y"])], {"x": FLOATS}, {"y": (TensorProto.FLOAT, [2, 2, 4])}, [shape]
    )
    found = tapped(fixed, ["y"], size=PieceSize(1))
    (piece,) = found.split(batch_of(4))
    assert found.run(piece.inputs)[0].shape == (2, 2, 4)


def test_buffers_are_used_again_once_they_are_given_back(elementwise):
    found, batch = tapped(elementwise, ["a", "b"]), batch_of(3)
    found.run(batch.inputs)  # Tells the shapes.
    first = found.run(batch.inputs)
    kept = [array.copy() for array in first]
    second = found.run({"x": batch.inputs["x"] * 2})
    for one, other in zip(first, kept, strict=True):
        np.testing.assert_array_equal(one, other)  # It was not given back.
    assert not np.shares_memory(first[0], second[0])
    found.one_pass().recycle(first)
    third = found.run({"x": batch.inputs["x"] * 3})
    assert third is first  # And with it what binds it to the session.
    np.testing.assert_array_equal(third[0], kept[0] * 3)
    found.one_pass().recycle(third)
    other = batch_of(2)
    found.run(other.inputs)
    fourth = found.run(other.inputs)
    assert np.shares_memory(fourth[0], third[0])
    np.testing.assert_array_equal(fourth[1], np.abs(other.inputs["x"]))


def test_spans_tell_where_floats_lie(build_model):
    model = build_model(
        [("Neg", ["x"], ["a"]), ("Shape", ["x"], ["b"]), ("Abs", ["a"], ["c"])],
        {"x": FLOATS},
        {"b": (TensorProto.INT64, [2]), "c": FLOATS},
    )
    found, batch = tapped(model, ["a", "b", "c"]), batch_of(3)
    found.run(batch.inputs)
    arrays = found.run(batch.inputs)
    assert arrays.spans[1] is None
    for index in (0, 2):
        values = arrays.words[slice(*arrays.spans[index])].view(np.float32)
        np.testing.assert_array_equal(values, arrays[index].reshape(-1))


def test_shapes_that_depend_on_values_are_made_by_the_runtime(build_model):
    kind = (TensorProto.INT64, ["r", "k"])
    nonzero = build_model([("NonZero", ["x"], ["y"])], {"x": FLOATS}, {"y": kind})
    found = tapped(nonzero, ["y"], size=replace(FAST, whole=True))
    for ones in (3, 5, 0, 8):
        array = np.zeros((2, 4), np.float32)
        array.reshape(-1)[:ones] = 1
        (indices,) = found.run({"x": array})
        assert indices.shape == (2, ones)


def test_several_threads_run_at_once(elementwise):
    found, batches = tapped(elementwise, ["a", "b"], threads=2), [batch_of(size) for size in range(1, 30)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda batch: found.run(batch.inputs), [*batches, *batches]))
    for batch, arrays in zip([*batches, *batches], results, strict=True):
        np.testing.assert_array_equal(arrays[0], -batch.inputs["x"])
        np.testing.assert_array_equal(arrays[1], np.abs(batch.inputs["x"]))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_tensors_in_blocks_are_those_in_order(convolutions, size, whole):
    taps = ["c0", "r0", "c1", "r1", "c2"]
    batch = batch_of(size, (3, 12, 10))
    found, _ = run_pieces(tapped(convolutions, taps, size=replace(FAST, whole=whole)), batch, taps)
    for one, other in zip(found, run_whole(convolutions, taps, batch), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_fills_up_a_block_is_never_seen(convolutions):
    taps = ["r0", "r1"]
    session, blocked = open_tapped(tap(ir.from_proto(convolutions), taps), 1)
    if blocked is None:
        pytest.skip("this processor's convolutions have no blocks")
    assert blocked[1] == [0]
    batch = batch_of(2, (3, 12, 10))
    plain, moved = session.run(batch.inputs), blocked[0].run(batch.inputs)
    assert block_of(moved[0], plain[0]) is not None
    np.testing.assert_array_equal(plain[1], moved[1])


def test_no_block_is_found_for_other_values():
    plain = RNG.normal(size=(2, 16, 3, 3)).astype(np.float32)
    assert block_of(plain[..., ::-1].copy(), plain) is None
    assert block_of(plain.reshape(2, 16, 9), plain) is None
    assert unblock(plain, 1) is not plain


def test_failure_is_that_of_the_session(elementwise):
    with pytest.raises(RuntimeFailedError, match="ONNX Runtime failed on a batch"):
        tapped(elementwise, ["a"]).run({"x": np.zeros((2, 5), np.float32)})

"""Weights of 4-bit floats: scales on two levels, along the inputs, restored as our own arithmetic says."""

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.arithmetic import dequantize
from ptq_cli.core.formats import FLOAT4_E2M1, FLOAT8_E4M3FN
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.pair_operators import four_bit_source
from ptq_cli.plan.sites import WeightSite
from ptq_cli.qdq.write.block_weights import TwoLevelQuantizer, add_two_levels, two_level_scales
from ptq_cli.qdq.write.new_nodes import NewNodes
from ptq_cli.recipe.sections import AmaxSettings
from ptq_cli.runtime.session import Session


def weight(axis: int) -> np.ndarray:
    array = np.random.default_rng(0).standard_normal((8, 48)).astype(np.float32)
    array[0, :16], array[1, :16] = 0.0, 1e-7  # A block of zeros, and one that is nothing beside the others.
    return np.ascontiguousarray(array.T) if axis == 0 else array


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_stored_is_what_is_computed(axis: int) -> None:
    array = weight(axis)
    site = WeightSite(tensor="w", node="m", input_index=1, format=FLOAT4_E2M1, axis=axis, block_size=16)
    quantizer = TwoLevelQuantizer(AmaxSettings())
    parameters = quantizer.choose(array, site).parameters
    assert parameters is not None
    stored = quantizer.store(array, site, parameters)
    names = ("x", "y")
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, None]))
        for name in names
    )
    graph = ir.Graph([x], [y], nodes=[], opset_imports={"": 23}, name="g")
    reader = ir.node("MatMul", [x, x], {}, name="m", outputs=[y])
    graph.append(reader)
    value = add_two_levels(NewNodes(graph), reader, site, stored, parameters.scale)
    reader.replace_input_with(1, value)
    source = four_bit_source(value)
    assert source is not None and source.attributes["axis"].value == -1
    types = {name: item.const_value.dtype for name, item in graph.initializers.items()}
    assert types == {
        "w.quantized": ir.DataType.FLOAT4E2M1,
        "w.block_scale": ir.DataType.FLOAT8E4M3FN,
        "w.scale": ir.DataType.FLOAT,
    }
    rows = (array.T if axis == 0 else array).reshape(-1, 16)
    wanted = dequantize(
        (stored.integers.T if axis == 0 else stored.integers).reshape(-1, 16), parameters
    ).reshape(8, 48)
    inputs = np.eye(array.shape[0], dtype=np.float32)
    [found] = Session(serialize(ir.Model(graph, ir_version=11)), threads=1).run({"x": inputs})
    assert np.allclose(found if axis else found.T, wanted, rtol=1e-6, atol=0)
    assert np.abs(wanted.reshape(-1, 16) - rows).max() < np.abs(rows).max() / 5


def test_the_largest_scale_of_a_block_is_448() -> None:
    amax = np.float32([5.0, 1e-9, 0.0, 2.0])
    one, blocks = two_level_scales(amax)
    assert one == np.float32(5.0 / 6 / 448)
    assert blocks[0] == FLOAT8_E4M3FN.largest and blocks[1] == 2.0**-9 and blocks[2] == 1.0

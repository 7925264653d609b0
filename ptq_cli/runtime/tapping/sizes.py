"""How large inner tensors are, learnt without holding them."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.core.work.memory import resident_bytes
from ptq_cli.models.graph.graph_reading import every_value
from ptq_cli.runtime.sessions.session import Session
from ptq_cli.runtime.tapping.nested_taps import handed_out
from ptq_cli.runtime.tapping.taps import tap

_SUFFIX = "/ptq.shape"


def tapped_sizes(
    model: ir.Model, taps: Sequence[str], inputs: Mapping[str, Array]
) -> tuple[dict[str, int], int]:
    """Return how many bytes each tapped tensor takes for a batch, and how many the run takes without them.

    The model is run with an operator ``Shape`` behind each tensor, so that none is kept.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    values = {value.name: value for value in every_value(model.graph)}
    before = resident_bytes()
    shapes = measured_shapes(model, taps, inputs)
    grown = max(0, resident_bytes() - before)
    return {name: prod(shapes[name]) * _item_bytes(values[name]) for name in taps}, grown


def measured_shapes(
    model: ir.Model, tensors: Sequence[str], inputs: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that computed tensors have for a batch: the model runs, and keeps none of them.

    Edge case:
        A tensor of a nested graph has one axis, as long as all its values; it may be empty.

    Raises:
        RuntimeFailedError: ONNX Runtime failed.
    """
    shaped = model.clone()
    values = handed_out(shaped, tensors)
    for name in tensors:
        node = ir.node("Shape", [values[name]])
        node.outputs[0].name = f"{name}{_SUFFIX}"
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        shaped.graph.append(node)
    session = Session(tap(shaped, [f"{name}{_SUFFIX}" for name in tensors]), threads=1)
    found = session.run(inputs)
    return {
        name: tuple(int(size) for size in shape.astype(np.int64))
        for name, shape in zip(tensors, found, strict=True)
    }


def _item_bytes(value: ir.Value) -> int:
    dtype = value.dtype or ir.DataType.FLOAT
    return max(1, round(dtype.itemsize))

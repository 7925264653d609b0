"""Operators that a kernel of ONNX Runtime mishandles are written in another form."""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of
from ptq_cli.models.preparing.rewriting import (
    RewritePass,
    add_constant,
    array_of,
    drop,
    each_node,
    made_by,
    put_before,
)

PADS, PAD_AXES = 1, 3
ROI, SCALES, SIZES = 1, 2, 3


def _pad(node: ir.Node, names: FreshNames) -> bool:
    """Write a Pad of some axes for all: ONNX Runtime moves transposes past it as if all were meant.

    Requires: opset 18, where Pad and Resize may name axes; the rank is known.
    """
    rank, named = rank_of(node.inputs[0]), array_of(input_at(node, PAD_AXES))
    if rank is None or named is None:
        return False
    axes = [int(axis) % rank for axis in named]
    places = np.array([*axes, *(axis + rank for axis in axes)])
    _spread(node, PADS, np.zeros(2 * rank, np.int64), places, names)
    node.resize_inputs(PAD_AXES)
    return True


def _resize(node: ir.Node, names: FreshNames) -> bool:
    """Write a Resize of some axes for all, as `_pad`; one that keeps an aspect ratio of some axes stays."""
    named, rank = node.attributes.get("axes"), rank_of(node.inputs[0])
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if named is None or rank is None or policy != "stretch":
        return False
    axes = np.array([axis % rank for axis in named.as_ints()])
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        whole = np.repeat(np.array([0, 1], np.float32), rank)
        _spread(node, ROI, whole, np.concatenate([axes, axes + rank]), names)
    _spread(node, SCALES, np.ones(rank, np.float32), axes, names)
    if input_at(node, SIZES) is not None:
        shape = put_before(node, ir.Node("", "Shape", [node.inputs[0]]), names)
        shape.type = ir.TensorType(ir.DataType.INT64)
        _spread(node, SIZES, shape, axes, names)
    del node.attributes["axes"]
    return True


NAMED_AXES = RewritePass(
    "named_axes",
    "Pad or Resize of some axes into one of all",
    each_node(lambda node, names: (_pad if node.op_type == "Pad" else _resize)(node, names), "Pad", "Resize"),
    opset=18,
)


def _spread(node: ir.Node, index: int, whole: Array | ir.Value, places: Array, names: FreshNames) -> None:
    """Put what a node has for some places into the whole, and give it that instead."""
    given = input_at(node, index)
    known = array_of(given)
    if given is None or (known is not None and known.size == 0):
        return
    if known is not None and not isinstance(whole, ir.Value):
        array = whole.astype(known.dtype)
        array[places] = known
        node.replace_input_with(index, add_constant(node.graph, array, given.name or "axes", names))
        return
    indices = add_constant(node.graph, places.astype(np.int64), "axes", names)
    if not isinstance(whole, ir.Value):
        whole = add_constant(node.graph, whole, "whole", names)
    spread = put_before(node, ir.Node("", "ScatterElements", [whole, indices, given]), names)
    spread.type = given.type
    node.replace_input_with(index, spread)


def _drop_dilations(node: ir.Node, names: FreshNames) -> bool:  # noqa: ARG001 - a rewrite's signature
    """Drop ``dilations`` of 1, an attribute of opset 19 that ONNX Runtime's integer AveragePool refuses."""
    if set(node.attributes.get_ints("dilations", ())) != {1}:
        return False
    del node.attributes["dilations"]
    return True


UNIT_DILATIONS = RewritePass(
    "unit_dilations",
    "AveragePool with dilations of 1 into one without",
    each_node(_drop_dilations, "AveragePool"),
    opset=19,
)
_FLOAT, _FLOAT16, DOUBLE = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE
_INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
_WIDER = {
    _FLOAT: {DOUBLE},
    _FLOAT16: {_FLOAT, DOUBLE},
    ir.DataType.BFLOAT16: {_FLOAT, DOUBLE},
    _INT32: {INT64, DOUBLE},
    ir.DataType.BOOL: {_INT32, INT64, _FLOAT, _FLOAT16, DOUBLE},
}


def _drop_cast(node: ir.Node, names: FreshNames) -> bool:  # noqa: ARG001 - a rewrite's signature
    """Drop a Cast to a wider type and back; one to a narrower type and back rounds, and stays."""
    # Casts to the type that there is, Dropout and Identity go by the rules and passes of ``simplify``.
    inner = made_by(node.inputs[0], "Cast")
    source = inner.inputs[0] if inner is not None else None
    # An output of the graph keeps its name, which what goes in may not take: it may be an input.
    if inner is None or source is None or source.dtype is None or node.outputs[0].is_graph_output():
        return False
    wide = ir.DataType(inner.attributes.get_int("to", 0))
    if node.attributes.get_int("to", 0) != source.dtype or wide not in _WIDER.get(source.dtype, ()):
        return False
    ir.convenience.replace_all_uses_with(node.outputs[0], source)
    drop(node)
    return True


CASTS = RewritePass("cast", "Cast to a wider type and back", each_node(_drop_cast, "Cast"))

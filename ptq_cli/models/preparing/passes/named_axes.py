"""Pad and Resize that name their axes are written for all axes.

Requires: opset 18, where both may name axes; the rank is known. Ensures: what is padded or resized is the
same; a Resize that keeps an aspect ratio of some axes stays. ONNX Runtime moves its transposes of integer
convolutions past both operators as if all axes were meant, and the model fails as it runs.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at, rank_of
from ptq_cli.models.preparing.rewriting.edit import add_constant, put_before
from ptq_cli.models.preparing.rewriting.match import array_of
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

PADS, PAD_AXES = 1, 3
ROI, SCALES, SIZES = 1, 2, 3


def spell_out_axes(graph: ir.Graph, names: FreshNames) -> int:
    """Write each Pad and Resize for all axes, and return how many were."""
    edits = {"Pad": _pad, "Resize": _resize}
    nodes = [node for node in graph if node.domain == "" and node.op_type in edits]
    return sum(edits[node.op_type](node, names) for node in nodes)


NAMED_AXES = RewritePass("named_axes", "Pad or Resize of some axes into one of all", spell_out_axes, opset=18)


def _pad(node: ir.Node, names: FreshNames) -> bool:
    rank, named = rank_of(node.inputs[0]), array_of(input_at(node, PAD_AXES))
    if rank is None or named is None:
        return False
    axes = [int(axis) % rank for axis in named]
    places = np.array([*axes, *(axis + rank for axis in axes)])
    _spread(node, PADS, np.zeros(2 * rank, np.int64), places, names)
    node.resize_inputs(PAD_AXES)
    return True


def _resize(node: ir.Node, names: FreshNames) -> bool:
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

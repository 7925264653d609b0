"""ReduceMean over an image's height and width becomes GlobalAveragePool.

Requires: float32 with four or five axes, of which all behind the channels are averaged, and no squares, whose
mean is a variance. Ensures: GlobalAveragePool, with a Reshape where the axes go. PyTorch exports its pooling
as a mean, and the mean has no integer kernel where the pooling has one: a network's last blocks, and every
gate of squeeze-and-excitation, stayed float for it.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.graph.graph_reading import input_at, rank_of
from ptq_cli.models.preparing.rewriting.edit import add_constant, put_before, put_instead
from ptq_cli.models.preparing.rewriting.match import array_of, is_float32, made_by
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

SQUARES = ("Mul", "Pow")


def pool_means(graph: ir.Graph, names: FreshNames) -> int:
    """Make a pooling of each ReduceMean that is one, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "ReduceMean" and item.domain == ""]:
        x = node.inputs[0]
        if x is None or not is_float32(x) or not _is_spatial(node, x) or _is_square(x):
            continue
        pooling = ir.Node("", "GlobalAveragePool", [x])
        if node.attributes.get_int("keepdims", 1):
            put_instead(pooling, node, names)
        else:
            pooled = put_before(node, pooling, names)
            shape = add_constant(graph, np.array([0, -1], np.int64), "pooled.shape", names)
            put_instead(ir.Node("", "Reshape", [pooled, shape]), node, names)
        count += 1
    return count


MEAN_POOL = RewritePass("mean_pool", "ReduceMean of an image into GlobalAveragePool", pool_means)


def _is_spatial(node: ir.Node, x: ir.Value) -> bool:
    rank = rank_of(x)
    given = array_of(input_at(node, 1))
    axes = given.tolist() if given is not None else list(node.attributes.get_ints("axes", ()))
    # Of three axes the last may as well be a token's features as a signal's time.
    return rank in (4, 5) and sorted(axis % rank for axis in axes) == list(range(2, rank))


def _is_square(x: ir.Value) -> bool:
    node = made_by(x, *SQUARES)
    return node is not None and (node.op_type == "Pow" or node.inputs[0] is node.inputs[1])

"""An If, Loop or Scan that was removed leaves nothing that reads values around it."""

import onnx_ir as ir
from onnx_ir.passes import common as passes

from ptq_cli.models.graph.graph_reading import every_value


def remove_unused(model: ir.Model) -> None:
    """Remove the nodes whose results nobody reads.

    onnx_ir removes a node with the graphs inside it, and the nodes of those still count as readers: what only
    they read would stay, and what they read beside one other node would have two readers.

    Args:
        model: is changed in place.
    """
    passes.RemoveUnusedNodesPass()(model)
    while _forget_removed(model):
        passes.RemoveUnusedNodesPass()(model)


def _forget_removed(model: ir.Model) -> int:
    graphs = set(model.graphs())
    values = [*every_value(model.graph), *model.graph.initializers.values()]
    removed = [(node, index) for value in values for node, index in value.uses() if node.graph not in graphs]
    for node, index in removed:
        node.replace_input_with(index, None)
    return len(removed)

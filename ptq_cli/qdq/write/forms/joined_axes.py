"""An operator along one axis reads a tensor whose later axes are joined into one.

ONNX Runtime 1.31 transposes what a Softmax reads so that its axis comes last. With one axis behind it that
is a transpose of matrices; with several it is a general one, several times as slow as the Softmax itself.

Requires: a Softmax with a known rank and at least two axes behind its own. Ensures: the same bits, in a
Reshape, the operator, and a Reshape back, which has the operator's name and its result.
"""

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.preparing.rewriting.edit import drop
from ptq_cli.plan.questions.joinable_axes import axis_of
from ptq_cli.qdq.write.pair_nodes import add_initializer, put_in_front


def join_axes(node: ir.Node, names: FreshNames) -> None:
    """Write an operator along one axis with the axes behind that as one."""
    x, old = node.inputs[0], node.outputs[0]
    if x is None or x.shape is None or not isinstance(node.graph, ir.Graph):
        raise TypeError("only an operator with a known rank, in a graph, has axes to join")
    kept = [0] * (axis_of(node) + 1)  # 0: as in the input.
    sizes = list(x.shape)[len(kept) :]
    name = node.name or ""
    shape = add_initializer(node.graph, names.claim(f"{name}/shape"), np.asarray([*kept, -1], np.int64))
    flat = ir.node("Reshape", [x, shape], name=names.claim(f"{name}/Reshape"))
    inner = ir.node(
        node.op_type, flat.outputs, {"axis": len(kept) - 1}, name=names.claim(f"{name}/{node.op_type}")
    )
    before: list[ir.Node] = [flat, inner]
    if all(isinstance(size, int) for size in sizes):
        whole = add_initializer(
            node.graph, names.claim(f"{name}/whole_shape"), np.asarray([*kept, *sizes], np.int64)
        )
    else:
        asked = ir.node("Shape", [x], name=names.claim(f"{name}/Shape"))
        before.insert(0, asked)
        whole = asked.outputs[0]
    back = ir.node("Reshape", [*inner.outputs, whole], name=name)
    for made in (*before, back):
        made.metadata_props.update(node.metadata_props)
        for output in made.outputs:
            output.name = names.claim(f"{made.name}.output")
            output.type = ir.TensorType(ir.DataType.INT64) if made.op_type == "Shape" else old.type
    put_in_front(node, *before, back)
    result = back.outputs[0]
    result.name, result.shape = old.name, old.shape
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    drop(node)

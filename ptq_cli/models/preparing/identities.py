"""Identity operators are removed, in nested graphs too.

The pass of onnx_ir ends where a branch hands on a value from outside that is an output there as well, as the
state of a recurrent network is that passes two If.
"""

import onnx_ir as ir


def drop_identities(model: ir.Model) -> int:
    """Remove each Identity whose input can take the place of its result, and return how many.

    Requires: functions are inlined. Ensures: outputs keep their names. One stays if it makes an output
    of a value that its graph does not compute, or that is an output already.

    Args:
        model: is changed in place.
    """
    count = 0
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Identity" or node.domain != "" or len(node.inputs) != 1:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if (
            source is None
            or node.graph is None
            or (result.is_graph_output() and not _may_be_output(source, node))
        ):
            continue
        name, is_output = result.name, result.is_graph_output()
        source.shape, source.type = source.shape or result.shape, source.type or result.type
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        if is_output:
            source.name = name
        node.graph.remove(node, safe=True)
        count += 1
    return count


def _may_be_output(value: ir.Value, node: ir.Node) -> bool:
    producer = value.producer()
    return producer is not None and producer.graph is node.graph and not value.is_graph_output()

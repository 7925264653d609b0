"""Identity operators: those that nested graphs need are added, those that nobody needs go.

A branch of an If may only hand on a value from outside, or a constant. Passes that remove what computes
nothing leave such an output without a node that gives it, and the checker refuses the model. Of two
outputs that are one value ONNX Runtime gives the second no value. The pass of onnx_ir that removes
identities ends where a branch hands on a value from outside that is an output there as well.
"""

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_graph, every_node
from ptq_cli.models.names import FreshNames


def own_nested_outputs(model: ir.Model) -> int:
    """Put an Identity before outputs that a nested graph does not compute, or has twice; return how many.

    Ensures: each output of a nested graph is computed by a node of its own there. Names outside stay.
    """
    names: FreshNames | None = None
    added = 0
    for graph in every_graph(model.graph):
        if graph is model.graph:
            continue
        given: set[ir.Value] = set()
        for index, output in enumerate(graph.outputs):
            producer = output.producer()
            if producer is not None and producer.graph is graph and output not in given:
                given.add(output)
                continue
            names = names or FreshNames.of(model.graph)
            node = ir.node("Identity", [output], name=names.claim(f"{output.name}/Identity"))
            own = node.outputs[0]
            own.name, own.type, own.shape = names.claim(f"{output.name}.own"), output.type, output.shape
            graph.append(node)
            graph.outputs[index] = own
            added += 1
    return added


def drop_identities(model: ir.Model) -> int:
    """Remove each Identity whose input can take the place of its result, and return how many.

    Requires: functions are inlined. Ensures: outputs keep their names. One stays if it makes an output
    of a value that its graph does not compute, or that is an output already.
    """
    count = 0
    for node in list(every_node(model.graph)):
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

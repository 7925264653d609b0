"""What is asked about single values and nodes of a graph, by whoever prepares or places it."""

import onnx_ir as ir


def input_at(node: ir.Node, index: int | None) -> ir.Value | None:
    """Return an input of a node, or None where it has no such input or it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Return how many axes a value has, or None where that is not known."""
    return len(value.shape) if value is not None and value.shape is not None else None


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that alone reads a value, or None where several do or it is an output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def nested_graphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs inside a node, as an If has; not those inside their nodes."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs += attribute.as_graphs()
    return graphs

"""Names by which the nodes of a graph are found again in what a runtime makes of it."""

import re

import onnx_ir as ir

MARK = re.compile(r"ptq\.(?:node|value)(\d+)\.")
"""The index of a node in the graph's order, in a name that a runtime made of one of ``marked_graph``."""


def marked_graph(model: ir.Model) -> ir.Model:
    """Return a copy whose nodes and computed values have names that a runtime's kernels keep.

    Nodes of nested graphs keep their names.

    Example:
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Exp(x) }'
        >>> marked = marked_graph(ir.from_onnx_text(text))
        >>> marked.graph[0].name, marked.graph.outputs[0].name
        ('ptq.node0.', 'ptq.value0.y')
    """
    marked = model.clone()
    for index, node in enumerate(marked.graph):
        node.name = f"ptq.node{index}."
        for value in node.outputs:
            if value.name:
                value.name = f"ptq.value{index}.{value.name}"
    return marked

"""A nested graph's outputs are its own: what comes from outside, or is there twice, passes an Identity.

A branch of an If may only hand on a value from outside, or a constant. Passes that remove what computes
nothing leave such an output without a node that gives it, and the checker refuses the model. Of two outputs
that are one value ONNX Runtime gives the second no value.
"""

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames


def own_nested_outputs(model: ir.Model) -> int:
    """Put an Identity before outputs that a nested graph does not compute, or has twice; return how many.

    Ensures: each output of a nested graph is computed by a node of its own there. Names outside stay.

    Args:
        model: is changed in place.
    """
    names: FreshNames | None = None
    added = 0
    for graph in model.graphs():
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

"""A Cast to a wider type and back.

Requires: each value of the narrow type is one of the wide type. Ensures: readers read what went in. A Cast to
a narrower type and back rounds, and stays. Dropout, Identity and a Cast to the type that there is are removed
by onnxscript's rules and onnx_ir's passes (``simplify``).
"""

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import FreshNames
from ptq_cli.models.preparing.rewriting.edit import drop
from ptq_cli.models.preparing.rewriting.match import made_by
from ptq_cli.models.preparing.rewriting.rewrite_pass import RewritePass

FLOAT, FLOAT16, DOUBLE = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE
INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
WIDER = {
    FLOAT: {DOUBLE},
    FLOAT16: {FLOAT, DOUBLE},
    ir.DataType.BFLOAT16: {FLOAT, DOUBLE},
    INT32: {INT64, DOUBLE},
    ir.DataType.BOOL: {INT32, INT64, FLOAT, FLOAT16, DOUBLE},
}


def drop_casts(graph: ir.Graph, names: FreshNames) -> int:  # noqa: ARG001 - a pass's signature
    """Drop each Cast that undoes another, and return how many."""
    count = 0
    for node in [item for item in graph if item.op_type == "Cast" and item.domain == ""]:
        inner = made_by(node.inputs[0], "Cast")
        source = inner.inputs[0] if inner is not None else None
        # An output of the graph keeps its name, which what goes in may not take: it may be an input.
        if inner is None or source is None or source.dtype is None or node.outputs[0].is_graph_output():
            continue
        wide = ir.DataType(inner.attributes.get_int("to", 0))
        if node.attributes.get_int("to", 0) == source.dtype and wide in WIDER.get(source.dtype, ()):
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            drop(node)
            count += 1
    return count


CASTS = RewritePass("cast", "Cast to a wider type and back", drop_casts)

"""Tables that rows are looked up in, as embeddings: stored in blocks if the runtime reads those."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.plan.sites import WeightSite
from ptq_cli.plan.target.rules import Target

GATHER = "Gather"
MATRIX = 2
LEAST_ROWS = 8
"""A smaller table is not worth the operators."""


def table_sites(model: ir.Model, target: Target) -> Iterator[WeightSite]:
    """Yield a site for each Gather of rows from a constant matrix of floats, if the target reads such blocks.

    Args:
        model: the float model.
        target: whose rule for Gather says which blocks.
    """
    rule = target.op.get(GATHER)
    if rule is None or rule.blocks is None:
        return
    for node in model.graph:
        table = node.inputs[0] if node.op_type == GATHER and node.domain == "" else None
        if table is None or node.attributes.get_int("axis", 0) != 0 or not _is_table(table):
            continue
        yield WeightSite(
            tensor=table.name or "",
            node=node.name or "",
            input_index=0,
            format=target.weight_rule(GATHER).integers,
            axis=0,
            block_axis=1,
        )


def _is_table(value: ir.Value) -> bool:
    constant = value.const_value
    if constant is None or constant.dtype != ir.DataType.FLOAT or value.is_graph_output():
        return False
    shape = constant.shape.numpy()
    return len(shape) == MATRIX and shape[0] >= LEAST_ROWS


def table_bits(bits: int, target: Target) -> int:
    """Return how many bits an element of a table takes where a layer's weight would have so many.

    GatherBlockQuantized reads 4 bits; operators of ONNX alone look up rows of bytes.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> table_bits(4, load_target("ort-cpu"))
        8
    """
    return 4 if bits <= 4 and target.runtime_operators else 8

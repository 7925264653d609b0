"""Proof on an exported graph: fixed point has scales that are powers of two, and no others."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.core.errors import QuantizerValueError
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.integer_operators import DYNAMIC_LSTM, KERNEL_PARAMETERS
from ptq_cli.models.pair_operators import dequantized_by
from ptq_cli.placement.placed_graph import Placement
from ptq_cli.plan.sites import Plan
from ptq_cli.qdq.read.stored_constants import product_of


def prove_powers_of_two(model: ir.Model, placement: Placement, plan: Plan) -> None:
    """Read the scale of each tensor in fixed point from the graph, and prove that it is a power of two.

    A bias has the product of the scales of its weight and of its input: a power of two where both are.
    """
    found = list(_scales(model, placement, plan))
    if not found:
        return
    import torch

    from ptq_cli.quantizers.fixed_point_integers import require_power_of_two

    for tensor, scale in found:
        if scale is None or scale.const_value is None:
            raise RuntimeError(f"'{tensor}' is in fixed point, but has no scale in the quantized graph")
        try:
            require_power_of_two(torch.tensor(scale.const_value.numpy()))
        except QuantizerValueError as error:
            raise QuantizerValueError(f"'{tensor}': {error.message}", hint=error.hint) from error


def _scales(model: ir.Model, placement: Placement, plan: Plan) -> Iterator[tuple[str, ir.Value | None]]:
    families = placement.settings.activation_families
    nodes = {node.name: node for node in every_node(model.graph)}
    weights = {site for site, item in placement.families.items() if item.powers_of_two}
    fixed = {name for name, site in plan.activations.items() if families[site.source].powers_of_two}
    for site in weights:
        yield site.tensor, _scale_of(nodes[site.node], site.input_index)
    for bias in plan.biases:
        if bias.weight in weights and bias.activation in fixed:
            yield bias.tensor, _scale_of(nodes[bias.node], bias.input_index)
    for name in sorted(fixed):
        # The scale that was written, and not the one that was decided: the proof is on the exported
        # graph.
        yield name, next(iter(nodes[f"{name}/QuantizeLinear"].inputs[1:]), None)


def _scale_of(reader: ir.Node, index: int) -> ir.Value | None:
    if reader.op_type == DYNAMIC_LSTM:
        return reader.inputs[KERNEL_PARAMETERS[index]]
    value = reader.inputs[index]
    product = product_of(value.producer()) if value is not None else None
    if product is not None:
        return product.scale
    dequantize = dequantized_by(value)
    return dequantize.inputs[1] if dequantize is not None else None

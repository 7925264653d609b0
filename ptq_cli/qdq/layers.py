"""The layers of a graph that holds its Q/DQ already, as a plan has those of a float one."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target import Target
from ptq_cli.plan.tensors import constant_size
from ptq_cli.qdq.grids import DEQUANTIZE, grid_of, is_pair_node, stored_integers
from ptq_cli.qdq.operators import prove_operators


@dataclass(frozen=True)
class Formats:
    """The integers that a layer reads.

    Attributes:
        activations: of its activations, such as ``"uint8"``; empty where all are float.
        weight: of its weight; empty where that is float, or there is none.
    """

    activations: str = ""
    weight: str = ""

    def __str__(self) -> str:
        """Write both: ``uint8 x int8``."""
        return " x ".join(filter(None, (self.activations, self.weight)))


def planned_formats(plan: Plan, model: ir.Model) -> dict[str, Formats]:
    """Return what each layer would read, by its name."""
    weights = {site.node: site.format.name for site in plan.weights}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    formats = {}
    for node in model.graph:
        name = node.name or ""
        sites = [plan.activations.get(value.name or "") for value in node.inputs if value is not None]
        found = sorted({site.format.name for site in sites if site is not None}) if name in integer else []
        formats[name] = Formats(", ".join(found), weights.get(name, ""))
    return formats


def stored_formats(model: ir.Model) -> dict[str, Formats]:
    """Return what each layer of a quantized graph reads, by its name; an int32 bias is none of it."""
    formats = {}
    for node in model.graph:
        activations, weight = set(), ""
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is None or producer.op_type != DEQUANTIZE or is_pair_node(node):
                continue
            dtype, stored = grid_of(producer).dtype, stored_integers(producer)
            if stored is None:
                activations.add(dtype.name.lower())
            elif dtype != ir.DataType.INT32:
                weight = (stored.dtype or dtype).name.lower()
        formats[node.name or ""] = Formats(", ".join(sorted(activations)), weight)
    return formats


def quantized_plan(model: ir.Model, target: Target) -> Plan:
    """Return the layers of a quantized graph by a target's rules; without sites, since nothing is to be done.

    Args:
        model: constants are initializers, nodes have names.
        target: whose rules decide what is integer.
    """
    nothing: Mapping[str, int | None] = {node.name or "": 0 for node in model.graph}
    proofs = prove_operators(model, target, MultiplyAccumulates(nothing, {}, {}), None)
    nodes = {node.name or "": node for node in model.graph}
    layers = tuple(
        LayerPlan(
            proof.name, proof.op, proof.placement != "float", proof.reason, _parameters(nodes[proof.name])
        )
        for proof in proofs
    )
    return Plan(target.name, {}, (), (), layers)


def _parameters(node: ir.Node) -> int:
    total = 0
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        source = stored_integers(producer) if producer is not None and is_pair_node(producer) else value
        total += constant_size(source) if source is not None else 0
    return total

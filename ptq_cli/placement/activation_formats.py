"""A plan with the integers of activations that a recipe asks for; layers without a kernel stay float."""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.formats import BY_NAME, FloatFormat, IntegerFormat
from ptq_cli.models.graph_reading import every_node
from ptq_cli.plan.sites import ActivationSite, LayerPlan, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.recipe.quantizer_families import ActivationFamily, ScaledActivations

FOLLOWERS = (
    "bias of",
    "part of",
    "merged into",
)  # how reasons begin of what is computed with another operator


def with_formats(
    model: ir.Model, plan: Plan, families: Mapping[str, ActivationFamily], target: Target
) -> Plan:
    """Return the plan with each activation's integers as its source's quantizer asks.

    A layer whose edges then have integers of several types, or of a type that the target computes in float,
    stays between its pairs, and says that it is computed in float there.
    """
    sites = {name: as_asked(site, families[site.source]) for name, site in plan.activations.items()}
    if sites == plan.activations:
        return plan
    layers = {layer.name: layer for layer in plan.layers}
    for node in every_node(model.graph):
        layer = layers[node.name or ""]
        if layer.quantized and (reason := _float_reason(node, layer, sites, layers, target)):
            layers[layer.name] = replace(layer, quantized=False, between_pairs=True, reason=reason)
    return replace(plan, activations=sites, layers=tuple(layers[layer.name] for layer in plan.layers))


def as_asked(site: ActivationSite, family: ActivationFamily) -> ActivationSite:
    """Return a site with the integers that a quantizer asks for."""
    if not isinstance(family, ScaledActivations):
        return site
    dtype = site.format if family.dtype is None else BY_NAME[family.dtype]
    if family.bits is not None and isinstance(dtype, IntegerFormat):
        dtype = replace(dtype, bits=family.bits)
    symmetric = site.symmetric if family.symmetric is None else family.symmetric
    # ONNX allows a zero point of 0 alone for float8 and float4 (QuantizeLinear, opset 19 and 23).
    symmetric = symmetric or isinstance(dtype, FloatFormat)
    return replace(site, format=dtype, symmetric=symmetric)


def _float_reason(
    node: ir.Node,
    layer: LayerPlan,
    sites: Mapping[str, ActivationSite],
    layers: Mapping[str, LayerPlan],
    target: Target,
) -> str:
    """Reason why a layer is computed in float between its pairs, or an empty string if it is not."""
    edges = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
    formats = [sites[edge].format for edge in edges if edge in sites]
    # Those of fewer bits are held in the type's own integers, which is what a kernel reads.
    held = [item.whole if isinstance(item, IntegerFormat) else item for item in formats]
    names = list(dict.fromkeys(item.name for item in held))
    simulated = [name for name in names if name in target.activation.simulated]
    if simulated:
        return f"its edges are {' and '.join(names)}: target {target.name} computes {simulated[0]} in float"
    if len(names) > 1 and not (target.activation.mixed or target.activation.converted):
        return f"its edges are {' and '.join(names)}: an integer kernel supports one type, so it is in float"
    if layer.reason.startswith(FOLLOWERS):
        before = [value.producer() for value in node.inputs if value is not None]
        moved = [item.name or "" for item in before if item is not None]
        # What was merged into a float operator is computed in float with it.
        if any(layers[name].between_pairs for name in moved if name in layers):
            return f"{layer.reason}, in float"
    return ""

"""Sites of weights and of tables in blocks with the formats of their quantizers, and the opset they need."""

from collections.abc import Container, Mapping
from dataclasses import replace

import onnx_ir as ir

from ptq_cli.core.formats import FloatFormat, IntegerFormat
from ptq_cli.models.files.turned_tables import is_turned
from ptq_cli.models.graph_reading import constant_shape, every_node
from ptq_cli.models.opset import QUARTER_BYTE_OPSET
from ptq_cli.placement.target_limits import MATRIX, block_rule
from ptq_cli.placement.tensor_settings import TensorSettings
from ptq_cli.placement.weight_families import weight_site
from ptq_cli.plan.embedding_tables import table_bits, table_sites, tied_tables
from ptq_cli.plan.sites import Plan, WeightSite
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.target_faults import FLOAT_OPSETS
from ptq_cli.qdq.write.weight_quantizer import BYTE, HALF_BYTE, PACKED_OPSET, QUARTER_BYTE
from ptq_cli.recipe.declaration import FLOAT, STATIC
from ptq_cli.recipe.quantizer_families import (
    TENSOR,
    ScaledWeights,
    WeightFamily,
)
from ptq_cli.recipe.quantizer_settings import described
from ptq_cli.recipe.sections import FLOAT16

# MatMulNBits of ONNX Runtime 1.31 gives wrong numbers for 2 bits if their number is not a multiple of it.
OUTPUTS_OF_QUARTERS = 4
TABLE = "Gather"


def formatted_sites(
    model: ir.Model, plan: Plan, settings: TensorSettings, target: Target
) -> dict[WeightSite, WeightSite]:
    """Return the sites of a plan with the formats of their quantizers."""
    constants = model.graph.initializers
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    found = {}
    for site in plan.weights:
        family, mode = settings.weight_families[site], settings.modes.get(site.node, STATIC)
        rule = block_rule(family, target, ops[site.node], mode)
        shape = constant_shape(constants[site.tensor])
        if rule is None or not isinstance(family, ScaledWeights):
            # A DequantizeLinear has scales along one axis: those of several matrices are multiplied with.
            is_batch = mode == FLOAT and ops[site.node] == "MatMul" and len(shape) > MATRIX
            own = replace(site, axis=len(shape) - 1, as_product=True) if is_batch else site
            found[site] = weight_site(own if _is_plain(family) else site, family, shape)
        else:
            found[site] = site_in_blocks(
                site, replace(family, bits=_bits(site, family, shape, target)), rule.kernel
            )
    return found


def _is_plain(family: WeightFamily) -> bool:
    if not isinstance(family, ScaledWeights):
        return False
    return family.dtype is None and family.block_size is None and family.granularity != TENSOR


def _bits(site: WeightSite, family: ScaledWeights, shape: tuple[int, ...], target: Target) -> int:
    """Bits of a weight: those that are asked for, if the kernel computes them correctly."""
    if site.block_axis is not None:
        return table_bits(family.bits, target)
    outputs = shape[site.axis] if site.axis is not None else 1
    return 4 if family.bits <= QUARTER_BYTE and outputs % OUTPUTS_OF_QUARTERS else family.bits


def site_in_blocks(site: WeightSite, family: ScaledWeights, kernel: str) -> WeightSite:
    """Return the site of a matrix whose blocks a kernel reads, the last perhaps shorter than the others."""
    axis = site.block_axis if site.block_axis is not None else 1 - (site.axis or 0)
    return replace(
        site,
        format=IntegerFormat(family.bits, signed=family.symmetric),
        axis=axis,
        block_size=family.block_size,
        as_pair=False,
        as_product=False,
        kernel="",
        block_kernel=kernel,
    )


def as_stored(family: WeightFamily, site: WeightSite) -> WeightFamily:
    """Return a family with the bits that its integers have where a kernel reads them in blocks."""
    if site.block_kernel and isinstance(family, ScaledWeights):
        return replace(family, bits=site.format.bits)
    return family


def described_weights(
    model: ir.Model, families: Mapping[WeightSite, WeightFamily], target: Target
) -> dict[str, str]:
    """Return the quantizers of weights that are not those of the target, in words."""
    ops = {node.name: node.op_type for node in every_node(model.graph)}
    return {
        site.node: described(item)
        for site, item in families.items()
        if item != ScaledWeights(bits=target.weight_rule(ops[site.node]).bits)
    }


def oldest_opset(
    plan: Plan, families: Mapping[WeightSite, WeightFamily], target: Target, float_type: str
) -> int:
    """Return the oldest opset that a target, the integers of a plan and its scales need."""
    packs = target.weight.packed and any(family.bits <= HALF_BYTE for family in families.values())
    blocks = any(site.block_size is not None for site in families)
    formats = [site.format for site in plan.activations.values()] + [site.format for site in families]
    wide = any(item.bits > BYTE for item in formats)
    known = [FLOAT_OPSETS[item.name] for item in formats if isinstance(item, FloatFormat)]
    # Scales of float16 came with opset 19, and with 21 for TensorRT.
    newer = PACKED_OPSET if packs or blocks or wide or float_type == FLOAT16 else 0
    quarters = any(site.block_kernel and site.format.bits <= QUARTER_BYTE for site in families)
    return max(target.opset, newer, QUARTER_BYTE_OPSET if quarters else 0, *known)


def with_tables(model: ir.Model, plan: Plan, settings: TensorSettings, target: Target) -> Plan:
    """Return the plan with the tables of embeddings that are stored in blocks.

    A table that a layer has as its weight shares that layer's integers, if a Gather can read them. Where the
    layer stays float, so does the table: the file holds it once.
    """
    found = [site for site in table_sites(model, target) if _is_stored(model, site, settings, target)]
    stored = {site.node for site in (*found, *plan.weights)}
    tables = [site for site in found if not _stays_float(model.graph, site, stored)]
    if not tables:
        return plan
    tied = {name: item.site for item in tied_tables(model.graph, plan.weights) for name in item.gathers}
    own, reasons = [], {}
    for site in tables:
        family, shared = settings.weight_families[site], tied.get(site.node)
        if not isinstance(family, ScaledWeights):
            continue
        bits = table_bits(family.bits, target)
        if shared is None or settings.weight_families[shared] != replace(family, bits=bits):
            own.append(site)
            reasons[site.node] = (
                f"looks up rows of the table '{site.tensor}', stored in {bits} bits in blocks"
            )
    layers = tuple(replace(item, reason=reasons.get(item.name, item.reason)) for item in plan.layers)
    return replace(plan, weights=(*plan.weights, *own), layers=layers)


def _stays_float(graph: ir.Graph, site: WeightSite, stored: Container[str]) -> bool:
    """Whether a layer in float reads the table, as it is or transposed."""
    table = graph.initializers[site.tensor]
    turned = constant_shape(table)[::-1]
    twins = [
        value
        for value in graph.initializers.values()
        if value is not table and constant_shape(value) == turned and is_turned(table, value)
    ]
    return any((use.node.name or "") not in stored for value in (table, *twins) for use in value.uses())


def _is_stored(model: ir.Model, site: WeightSite, settings: TensorSettings, target: Target) -> bool:
    family = settings.weight_families.get(site)
    if family is None or site.node in settings.excluded or not isinstance(family, ScaledWeights):
        return False
    if block_rule(family, target, TABLE, settings.modes.get(site.node, STATIC)) is None:
        return False
    table = model.graph.initializers[site.tensor].const_value
    return table is not None and int(table.shape.numpy()[1]) % (family.block_size or 1) == 0

"""Layers of a quantized graph as a plan has them: formats and parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.integer_operators import DYNAMIC_LSTM, KERNEL_PARAMETERS, is_integer_operator
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    QUANTIZE,
    dequantized_by,
    is_pair_node,
)
from ptq_cli.plan.graph_questions import constant_size, parameter_size
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target.target_file import Target
from ptq_cli.plan.weighted_operators import DYNAMIC
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.read.dynamic_parts import DynamicPart, dynamic_parts, inside_parts
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import (
    UNPACKING,
    product_of,
    stored_integers,
    unpacking_nodes,
)

Stored = Mapping[ir.Value, ir.Value]
"""By a restored tensor: the constant with an element for each of its elements."""


DYNAMIC_FORMAT = "uint8"
"""What a layer makes of its activations at each run."""


@dataclass(frozen=True)
class Formats:
    """The integers that a layer reads, such as ``"uint8"``; empty where it reads floats."""

    activations: str = ""
    weight: str = ""

    def __str__(self) -> str:
        """Write both: ``uint8 x int8``."""
        return " x ".join(filter(None, (self.activations, self.weight)))


def planned_formats(plan: Plan, model: ir.Model) -> dict[str, Formats]:
    """Return what each layer would read, by its name."""
    weights = {site.node: site.format.name for site in plan.weights}
    in_kernel = {site.node for site in plan.weights if site.kernel or site.dynamic}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    formats = {}
    for node in every_node(model.graph):
        name = node.name or ""
        sites = [plan.activations.get(value.name or "") for value in node.inputs if value is not None]
        found = sorted({site.format.name for site in sites if site is not None}) if name in integer else []
        # A dynamic kernel takes uint8 whatever the target's static format is.
        activations = DYNAMIC_FORMAT if name in in_kernel else ", ".join(found)
        formats[name] = Formats(activations, weights.get(name, ""))
    return formats


def stored_formats(model: ir.Model) -> dict[str, Formats]:
    """Return what each layer of a quantized graph reads but for an int32 bias, by its name."""
    formats, parts, restored = {}, dynamic_parts(model), _stored_constants(model)
    for node in every_node(model.graph):
        if (part := parts.get(node.name or "")) is not None:
            formats[node.name or ""] = Formats(DYNAMIC_FORMAT, _type_of(part.integers, restored))
            continue
        activations, weight = set(), ""
        for value in node.inputs:
            product = product_of(value.producer()) if value is not None else None
            if product is not None and product.stored.dtype is not None:
                weight = product.stored.dtype.name.lower()
            dequantize = dequantized_by(value)
            if dequantize is None or is_pair_node(node):
                continue
            grid, stored = grid_of(dequantize), stored_integers(dequantize)
            dtype = grid.dtype
            if stored is None:
                activations.add(grid.format.name if grid.format is not None else dtype.name.lower())
            elif dtype != ir.DataType.INT32:
                # int32 behind a DequantizeLinear is a bias, and not the weight.
                weight = (stored.dtype or dtype).name.lower()
        if node.op_type == DYNAMIC_LSTM:
            activations, weight = {DYNAMIC_FORMAT}, _type_of(input_at(node, 1), restored)
        formats[node.name or ""] = Formats(", ".join(sorted(activations)), weight)
    return formats


def _type_of(weight: ir.Value | None, stored: Stored) -> str:
    integers = _behind(weight, stored)
    return integers.dtype.name.lower() if integers is not None and integers.dtype is not None else ""


def quantized_plan(model: ir.Model, target: Target) -> Plan:
    """Return the layers of a quantized graph by a target's rules; without sites: nothing is to be done."""
    nothing: Mapping[str, int | None] = {node.name or "": 0 for node in every_node(model.graph)}
    proofs = prove_operators(model, target, MultiplyAccumulates(nothing, {}, {}), None)
    nodes = {node.name or "": node for node in every_node(model.graph)}
    parts, stored = dynamic_parts(model), _stored_constants(model)
    layers = tuple(
        LayerPlan(
            name=proof.name,
            op=proof.op,
            quantized=proof.placement != "float",
            reason=DYNAMIC if proof.name in parts and not proof.reason else proof.reason,
            parameters=sum(size for _, size in _constants(nodes[proof.name], parts, stored)),
            dynamic=proof.name in parts,
        )
        for proof in proofs
    )
    return Plan(target=target.name, activations={}, weights=(), biases=(), layers=layers)


def parameter_count(model: ir.Model) -> int:
    """Return how many parameters a graph holds: floats, and integers that stand for them; no scales."""
    found: dict[ir.Value, int] = {}
    parts = dynamic_parts(model)
    inside, unpacking, stored = inside_parts(parts), unpacking_nodes(model), _stored_constants(model)
    for node in every_node(model.graph):
        if node not in inside and not is_pair_node(node) and node not in unpacking:
            found.update(_constants(node, parts, stored))
    return sum(found.values())


def layer_constants(model: ir.Model) -> dict[str, dict[str, int]]:
    """Return how many parameters each layer reads, by its name and the constants', which layers may share."""
    parts, stored = dynamic_parts(model), _stored_constants(model)
    return {
        node.name or "": {value.name or "": size for value, size in _constants(node, parts, stored) if size}
        for node in every_node(model.graph)
        if not is_pair_node(node)
    }


def _constants(
    node: ir.Node, parts: Mapping[str, DynamicPart], stored: Stored
) -> Iterator[tuple[ir.Value, int]]:
    """Yield each constant that a node reads, as it is or restored, with how many parameters it holds."""
    part = parts.get(node.name or "")
    integers = _behind(part.integers, stored) if part is not None else None
    if part is not None and integers is not None:
        yield integers, constant_size(integers)
        yield from (
            (value, parameter_size(value)) for value in node.inputs if value is not part.scale and value
        )
        return
    if node.op_type == DYNAMIC_LSTM:
        yield from _of_dynamic_lstm(node, stored)
        return
    for value in node.inputs:
        if value is not None and is_integer_operator(node.op_type):
            yield value, _integer_size(value)
            continue
        if value is not None and value.producer() is None:
            yield value, parameter_size(value)
        elif value is not None and (constant := _behind(value, stored)) is not None:
            yield constant, constant_size(constant)


def _of_dynamic_lstm(node: ir.Node, stored: Stored) -> Iterator[tuple[ir.Value, int]]:
    """Yield the constants of an LSTM on integers; those behind the inputs of LSTM are scales."""
    for index, value in enumerate(node.inputs[: min(KERNEL_PARAMETERS.values())]):
        constant = _behind(value, stored)
        if constant is not None:
            yield (
                constant,
                constant_size(constant) if index in KERNEL_PARAMETERS else parameter_size(constant),
            )


def _integer_size(value: ir.Value) -> int:
    """Return how many parameters a constant of an integer operator holds: a weight or a bias does."""
    constant = value.const_value
    if constant is None or constant.dtype.is_floating_point():
        return 0
    return int(constant.size) if len(constant.shape) > 1 or constant.dtype == ir.DataType.INT32 else 0


def _stored_constants(model: ir.Model) -> Stored:
    """Return the constant behind each restored tensor, none for what is computed; in one walk."""
    stored: dict[ir.Value, ir.Value] = {}
    for node in every_node(model.graph):
        product = product_of(node)
        if product is not None:
            constant = _behind(product.integers, stored)
        elif node.op_type in (*UNPACKING, QUANTIZE, DEQUANTIZE):
            # Of a codebook each index stands for a parameter; rows of a table are taken while the model runs.
            indices = _behind(input_at(node, 1), stored) if node.op_type == "Gather" else None
            constant = indices or _behind(node.inputs[0], stored)
        else:
            continue
        if constant is not None:
            stored.update(dict.fromkeys(node.outputs, constant))
    return stored


def _behind(value: ir.Value | None, stored: Stored) -> ir.Value | None:
    return value if value is None or value.const_value is not None else stored.get(value)

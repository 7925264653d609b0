"""Layers of a quantized graph as a plan has them: number formats, reasons and parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, input_at
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    DYNAMIC_LSTM,
    KERNEL_PARAMETERS,
    QUANTIZE,
    dequantized_by,
    is_integer_operator,
    is_pair_node,
)
from ptq_cli.plan.graph_questions import constant_size, parameter_size
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.weighted_operators import COMPUTED_DYNAMICALLY
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import (
    UNPACKING,
    dynamic_parts,
    inside_parts,
    product_of,
    stored_integers,
    unpacking_nodes,
)

DYNAMIC_FORMAT = "uint8"  # what a layer makes of its activations at each run


@dataclass(frozen=True)
class LayerFormats:
    """The integers that a layer reads, such as ``"uint8"``; empty where it reads floats."""

    activations: str = ""
    weight: str = ""

    def __str__(self) -> str:
        """Write both: ``uint8 x int8``."""
        return " x ".join(filter(None, (self.activations, self.weight)))


def planned_formats(plan: Plan, model: ir.Model) -> dict[str, LayerFormats]:
    """Return the formats that each layer would read, by its name."""
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
        formats[name] = LayerFormats(activations, weights.get(name, ""))
    return formats


def stored_formats(model: ir.Model) -> dict[str, LayerFormats]:
    """Return the formats that each layer of a quantized graph reads, int32 biases left out, by its name."""
    constants, formats = _Constants(model), {}
    for node in every_node(model.graph):
        name = node.name or ""
        if (part := constants.parts.get(name)) is not None:
            formats[name] = LayerFormats(DYNAMIC_FORMAT, constants.type_of(part.integers))
        elif node.op_type == DYNAMIC_LSTM:
            formats[name] = LayerFormats(DYNAMIC_FORMAT, constants.type_of(input_at(node, 1)))
        else:
            formats[name] = _read_formats(node)
    return formats


def _read_formats(node: ir.Node) -> LayerFormats:
    activations, weight = set(), ""
    for value in node.inputs:
        product = product_of(value.producer()) if value is not None else None
        if product is not None and product.stored.dtype is not None:
            weight = product.stored.dtype.name.lower()
        dequantize = dequantized_by(value)
        if dequantize is None or is_pair_node(node):
            continue
        grid, stored = grid_of(dequantize), stored_integers(dequantize)
        if stored is None:
            activations.add(grid.format.name if grid.format is not None else grid.type_name)
        elif grid.dtype != ir.DataType.INT32:  # behind a DequantizeLinear it is a bias
            weight = (stored.dtype or grid.dtype).name.lower()
    return LayerFormats(", ".join(sorted(activations)), weight)


def quantized_plan(model: ir.Model, target: Target) -> Plan:
    """Return the layers of a quantized graph by a target's rules; without sites: nothing is to be done."""
    nodes = {node.name or "": node for node in every_node(model.graph)}
    work = MultiplyAccumulates(dict.fromkeys(nodes, 0), {}, {})
    constants = _Constants(model)
    layers = tuple(
        LayerPlan(
            name=proof.name,
            op=proof.op,
            quantized=proof.placement != "float",
            reason=COMPUTED_DYNAMICALLY
            if proof.name in constants.parts and not proof.reason
            else proof.reason,
            parameters=sum(size for _, size in constants.of(nodes[proof.name])),
            dynamic=proof.name in constants.parts,
        )
        for proof in prove_operators(model, target, work, None)
    )
    return Plan(target=target.name, activations={}, weights=(), biases=(), layers=layers)


def parameter_count(model: ir.Model) -> int:
    """Return how many parameters a graph holds: floats, and integers that stand for them; no scales."""
    found: dict[ir.Value, int] = {}
    constants = _Constants(model)
    left_out = inside_parts(constants.parts) | unpacking_nodes(model)
    for node in every_node(model.graph):
        if node not in left_out and not is_pair_node(node):
            found.update(constants.of(node))
    return sum(found.values())


def layer_constants(model: ir.Model) -> dict[str, dict[str, int]]:
    """Return how many parameters each layer reads, by its name and the constants', which layers may share."""
    constants = _Constants(model)
    return {
        node.name or "": {value.name or "": size for value, size in constants.of(node) if size}
        for node in every_node(model.graph)
        if not is_pair_node(node)
    }


class _Constants:
    """Constants that layers of a graph read, as they are or restored, with their number of parameters."""

    def __init__(self, model: ir.Model) -> None:
        self.parts = dynamic_parts(model)
        self._stored = _stored_constants(model)

    def type_of(self, weight: ir.Value | None) -> str:
        integers = _behind(weight, self._stored)
        return integers.dtype.name.lower() if integers is not None and integers.dtype is not None else ""

    def of(self, node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
        part = self.parts.get(node.name or "")
        integers = _behind(part.integers, self._stored) if part is not None else None
        if part is not None and integers is not None:
            yield integers, constant_size(integers)
            others = (value for value in node.inputs if value is not None and value is not part.scale)
            yield from ((value, parameter_size(value)) for value in others)
            return
        inputs: Mapping[int, ir.Value | None] = dict(enumerate(node.inputs))
        if node.op_type == DYNAMIC_LSTM:  # Behind the inputs of LSTM are scales.
            last = min(KERNEL_PARAMETERS.values())
            inputs = {index: _behind(value, self._stored) for index, value in inputs.items() if index < last}
        for index, value in inputs.items():
            constant = _behind(value, self._stored)
            if value is None:
                continue
            if node.op_type == DYNAMIC_LSTM:
                yield value, constant_size(value) if index in KERNEL_PARAMETERS else parameter_size(value)
            elif is_integer_operator(node.op_type):
                yield value, _integer_size(value)
            elif value.producer() is None:
                yield value, parameter_size(value)
            elif constant is not None:
                yield constant, constant_size(constant)


def _integer_size(value: ir.Value) -> int:
    """Return how many parameters a constant of an integer operator holds: a weight or a bias does."""
    constant = value.const_value
    if constant is None or constant.dtype.is_floating_point():
        return 0
    return int(constant.size) if len(constant.shape) > 1 or constant.dtype == ir.DataType.INT32 else 0


def _stored_constants(model: ir.Model) -> dict[ir.Value, ir.Value]:
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


def _behind(value: ir.Value | None, stored: Mapping[ir.Value, ir.Value]) -> ir.Value | None:
    return value if value is None or value.const_value is not None else stored.get(value)

"""The layers of a graph that holds its Q/DQ already, as a plan has those of a float one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import input_at
from ptq_cli.models.operators.dynamic_lstm import DYNAMIC_LSTM, KERNEL_PARAMETERS
from ptq_cli.models.operators.integer_operators import is_integer_operator
from ptq_cli.models.operators.pair_operators import DEQUANTIZE, QUANTIZE, dequantized_by, is_pair_node
from ptq_cli.plan.layers.storing import DYNAMIC
from ptq_cli.plan.multiply_accumulates import MultiplyAccumulates
from ptq_cli.plan.questions.graph_questions import constant_size, parameter_size
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target.target_file import Target
from ptq_cli.qdq.proof.operators import prove_operators
from ptq_cli.qdq.read.dynamic_parts import DynamicPart, dynamic_parts, inside_parts
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.qdq.read.stored_constants import UNPACKING, is_unpacking, product_of, stored_integers

DYNAMIC_FORMAT = "uint8"
"""What a layer makes of its activations at each run."""


@dataclass(frozen=True)
class Formats:
    """The integers that a layer reads.

    Attributes:
        activations: of its activations, such as ``"uint8"``; empty if all are float.
        weight: of its weight; empty if that is float, or there is none.
    """

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
    for node in model.graph.all_nodes():
        name = node.name or ""
        sites = [plan.activations.get(value.name or "") for value in node.inputs if value is not None]
        found = sorted({site.format.name for site in sites if site is not None}) if name in integer else []
        activations = DYNAMIC_FORMAT if name in in_kernel else ", ".join(found)
        formats[name] = Formats(activations, weights.get(name, ""))
    return formats


def stored_formats(model: ir.Model) -> dict[str, Formats]:
    """Return what each layer of a quantized graph reads, by its name; an int32 bias is none of it."""
    formats, parts = {}, dynamic_parts(model)
    for node in model.graph.all_nodes():
        if (part := parts.get(node.name or "")) is not None:
            formats[node.name or ""] = Formats(DYNAMIC_FORMAT, _type_of(part.integers))
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
                weight = (stored.dtype or dtype).name.lower()
        if node.op_type == DYNAMIC_LSTM:
            activations, weight = {DYNAMIC_FORMAT}, _kernel_format(node)
        formats[node.name or ""] = Formats(", ".join(sorted(activations)), weight)
    return formats


def _kernel_format(node: ir.Node) -> str:
    return _type_of(input_at(node, 1))


def _type_of(weight: ir.Value | None) -> str:
    integers = _made_of(weight)
    return integers.dtype.name.lower() if integers is not None and integers.dtype is not None else ""


def quantized_plan(model: ir.Model, target: Target) -> Plan:
    """Return the layers of a quantized graph by a target's rules; without sites, since nothing is to be done.

    Args:
        model: constants are initializers, nodes have names.
        target: whose rules decide what is integer.
    """
    nothing: Mapping[str, int | None] = {node.name or "": 0 for node in model.graph.all_nodes()}
    proofs = prove_operators(model, target, MultiplyAccumulates(nothing, {}, {}), None)
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    parts = dynamic_parts(model)
    layers = tuple(
        LayerPlan(
            name=proof.name,
            op=proof.op,
            quantized=proof.placement != "float",
            reason=DYNAMIC if proof.name in parts and not proof.reason else proof.reason,
            parameters=sum(size for _, size in _constants(nodes[proof.name], parts)),
            dynamic=proof.name in parts,
        )
        for proof in proofs
    )
    return Plan(target=target.name, activations={}, weights=(), biases=(), layers=layers)


def parameter_count(model: ir.Model) -> int:
    """Return how many parameters a graph holds: floats, and integers that stand for them; no scales of pairs.

    Example:
        >>> import onnx
        >>> text = '''<ir_version: 10, opset_import: ["": 20]> g (float[n, 2] x) => (float[n, 3] y)
        ...     <float s = {0.5}, int8[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
        ...     d = DequantizeLinear(w, s) y = Gemm(x, d, b) }'''
        >>> parameter_count(ir.from_proto(onnx.parser.parse_model(text)))
        9
    """
    found: dict[ir.Value, int] = {}
    parts = dynamic_parts(model)
    inside = inside_parts(parts)
    for node in model.graph.all_nodes():
        if node not in inside and not is_pair_node(node) and not is_unpacking(node):
            found.update(_constants(node, parts))
    return sum(found.values())


def layer_constants(model: ir.Model) -> dict[str, dict[str, int]]:
    """Return how many parameters each layer reads, by its name and the constants', which layers may share."""
    parts = dynamic_parts(model)
    return {
        node.name or "": {value.name or "": size for value, size in _constants(node, parts) if size}
        for node in model.graph.all_nodes()
        if not is_pair_node(node)
    }


def _constants(node: ir.Node, parts: Mapping[str, DynamicPart]) -> Iterator[tuple[ir.Value, int]]:
    """Yield each constant that a node reads, as it is or restored, with how many parameters it holds."""
    part = parts.get(node.name or "")
    stored = _made_of(part.integers) if part is not None else None
    if part is not None and stored is not None:
        yield stored, constant_size(stored)
        yield from (
            (value, parameter_size(value)) for value in node.inputs if value is not part.scale and value
        )
        return
    if node.op_type == DYNAMIC_LSTM:
        yield from _of_dynamic_lstm(node)
        return
    for value in node.inputs:
        if value is not None and is_integer_operator(node.op_type):
            yield value, _integer_size(value)
            continue
        if value is not None and value.producer() is None:
            yield value, parameter_size(value)
        elif value is not None and (stored := _made_of(value)) is not None:
            yield stored, constant_size(stored)


def _of_dynamic_lstm(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    """Yield the constants of an LSTM on integers; those behind the inputs of LSTM are scales."""
    for index, value in enumerate(node.inputs[: min(KERNEL_PARAMETERS.values())]):
        stored = _made_of(value)
        if stored is not None:
            yield stored, constant_size(stored) if index in KERNEL_PARAMETERS else parameter_size(stored)


def _integer_size(value: ir.Value) -> int:
    """Return how many parameters a constant of an integer operator holds: a weight or a bias does."""
    constant = value.const_value
    if constant is None or constant.dtype.is_floating_point():
        return 0
    return int(constant.size) if len(constant.shape) > 1 or constant.dtype == ir.DataType.INT32 else 0


def _made_of(value: ir.Value | None) -> ir.Value | None:
    """Return the constant with an element for each of a restored tensor's; None if that is computed."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        product = product_of(producer)
        if product is not None:
            value = product.integers
            continue
        if producer is None or producer.op_type not in (*UNPACKING, QUANTIZE, DEQUANTIZE):
            return None
        # Of a codebook each index stands for a parameter; rows of a table are taken while the model runs.
        indices = _made_of(input_at(producer, 1)) if producer.op_type == "Gather" else None
        value = indices or producer.inputs[0]
    return value

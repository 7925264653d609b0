"""What a plan saves: bytes of the file, and multiply-accumulates less what converting tensors costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ptq_cli.models.graph.fresh_names import short_name
from ptq_cli.models.graph.graph_reading import every_value
from ptq_cli.plan.bound_shapes import Shape, bind_shapes
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan

PAIR_BYTES = 390
"""Of a QuantizeLinear, a DequantizeLinear and their constants, without the names in them."""
NAMES_OF_PAIR = 14
"""How often the name of the tensor is part of a name in such a pair."""
CONSTANT_BYTES = 220
"""Of the DequantizeLinear of a stored constant, without names."""
NAMES_OF_CONSTANT = 8
"""Likewise."""
DYNAMIC_BYTES = 1200
"""Of the operators of a layer that makes integers of its activations at each run, without names."""
NAMES_OF_DYNAMIC = 30
"""Likewise."""
PER_ELEMENT = 10
"""Multiply-accumulates whose int8 kernel saves as much time as converting an element takes."""
PER_NODE = 16_000
"""Likewise, for running a QuantizeLinear or a DequantizeLinear at all."""


@dataclass(frozen=True)
class Savings:
    """What a plan saves, compared with the float model.

    Attributes:
        bytes: how much smaller the file is; negative if it is larger.
        work: multiply-accumulates in integers, less those that the conversions are worth.

    Units:
        bytes; multiply-accumulates for one sample, with the sizes that ``bind_shapes`` assumes.
    """

    bytes: int
    work: int

    def __sub__(self, other: "Savings") -> "Savings":
        return Savings(self.bytes - other.bytes, self.work - other.work)


@dataclass(frozen=True)
class Sizes:
    """What is known of a graph.

    Attributes:
        shapes: by the value's name.
        work: multiply-accumulates by the node's name; None if they are not known.
    """

    shapes: Mapping[str, Shape]
    work: Mapping[str, int | None]

    @classmethod
    def of(cls, model: ir.Model) -> "Sizes":
        """Return the sizes of a model."""
        return cls(bind_shapes(model).shapes, multiply_accumulates(model).counts)

    def elements(self, name: str) -> int | None:
        """Return how many elements a value has; None if that is not known."""
        shape = self.shapes.get(name, (None,))
        known = [size for size in shape if size is not None]
        return prod(known) if len(known) == len(shape) else None


def savings(model: ir.Model, plan: Plan, sizes: Sizes) -> Savings:
    """Return what a plan saves.

    Args:
        model: the float model.
        plan: what is quantized of it.
        sizes: of the same model.

    Edge case:
        A tensor of unknown size is converted for the cost of its nodes alone.

    Source:
        docs/decisions/0009-layers-that-stay-float.md, which has the command that measured the constants.
    """
    integer = {layer.name for layer in plan.layers if layer.quantized}
    work = sum(sizes.work.get(name) or 0 for name in integer)
    return Savings(
        _bytes_saved(model, plan) - sum(map(pair_bytes, plan.activations)),
        work - sum(_conversions(model, plan, integer, sizes)),
    )


def pair_bytes(tensor: str) -> int:
    """Return how many bytes a pair behind a tensor adds to the file.

    Example:
        >>> pair_bytes("x"), pair_bytes("a" * 1000) < 1200
        (404, True)
    """
    return PAIR_BYTES + NAMES_OF_PAIR * len(short_name(tensor))


def dynamic_bytes(layer: str) -> int:
    """Return how many bytes it adds to the file to make integers of what a layer reads at each run.

    Example:
        >>> dynamic_bytes("head")
        1320
    """
    return DYNAMIC_BYTES + NAMES_OF_DYNAMIC * len(short_name(layer))


def weight_bytes(model: ir.Model, tensor: str, bits: int, axis: int | None) -> int:
    """Return how many bytes it saves to store a weight as integers."""
    value = model.graph.initializers[tensor]
    shape = value.const_value.shape.numpy() if value.const_value is not None else ()
    channels = shape[axis] if axis is not None and shape else 1
    stored = prod(shape) * (32 - (bits if bits > 4 else 4)) // 8
    return int(stored - 5 * channels - CONSTANT_BYTES - NAMES_OF_CONSTANT * len(short_name(tensor)))


def _bytes_saved(model: ir.Model, plan: Plan) -> int:
    weights = {(site.tensor, site.axis): site for site in plan.weights}
    saved = sum(weight_bytes(model, site.tensor, site.format.bits, site.axis) for site in weights.values())
    saved -= sum(dynamic_bytes(site.node) for site in plan.weights if site.dynamic)
    for site in plan.biases:
        value = model.graph.initializers[site.tensor]
        elements = value.const_value.size if value.const_value is not None else 0
        saved -= 4 * elements + CONSTANT_BYTES + NAMES_OF_CONSTANT * len(short_name(site.tensor))
    return saved


def _conversions(model: ir.Model, plan: Plan, integer: set[str], sizes: Sizes) -> Iterator[int]:
    """Yield what each conversion between float and integer costs, in multiply-accumulates."""
    dynamic = {site.node for site in plan.weights if site.dynamic}
    for node in model.graph.all_nodes() if dynamic else ():
        if node.name in dynamic:  # It converts what it reads, and what it returns.
            for value in (node.inputs[0], node.outputs[0]):
                yield PER_NODE + PER_ELEMENT * (sizes.elements(value.name or "") or 0 if value else 0)
    values = {value.name or "": value for value in every_value(model.graph)}
    for name in plan.activations:
        value = values[name]
        producer = value.producer()
        cost = PER_NODE + PER_ELEMENT * (sizes.elements(name) or 0)
        from_integers = producer is not None and (producer.name or "") in integer
        if not from_integers:
            yield cost
            continue
        readers = [reader for reader, _ in value.uses()]
        if value.is_graph_output() or any((reader.name or "") not in integer for reader in readers):
            yield cost

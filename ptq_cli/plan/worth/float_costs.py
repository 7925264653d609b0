"""What a single layer of a plan costs in float: its products, and tensors that are converted then."""

from collections.abc import Collection, Iterator

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import every_value
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.worth.savings import PER_ELEMENT, PER_NODE, Sizes


def float_costs(model: ir.Model, plan: Plan, names: Collection[str]) -> dict[str, int]:
    """Return how many multiply-accumulates of work each layer costs if it alone stays in float.

    Args:
        model: the float model.
        plan: what is quantized of it.
        names: of the layers.

    Units:
        multiply-accumulates for one sample, which integers save; conversions count as in ``savings``.

    Edge case:
        A layer that is converted to and from float for its own sake has a negative cost: it saves time in
        float. A tensor of unknown size is converted for the cost of its nodes alone.

    Source:
        docs/decisions/0009-layers-that-stay-float.md, for the cost of a conversion.
    """
    sizes, values = Sizes.of(model), {value.name or "": value for value in every_value(model.graph)}
    integer = frozenset(layer.name for layer in plan.layers if layer.quantized)
    around: dict[str, list[str]] = {}
    for tensor in plan.activations:
        for name in {*_readers(values[tensor]), _producer(values[tensor])}:
            around.setdefault(name, []).append(tensor)
    return {
        name: (sizes.work.get(name) or 0)
        + sum(_added(values[tensor], name, integer, sizes) for tensor in around.get(name, ()))
        for name in names
    }


def _added(value: ir.Value, layer: str, integer: frozenset[str], sizes: Sizes) -> int:
    """Return what is converted more, or if negative less, of a tensor beside a layer in float."""
    cost = PER_NODE + PER_ELEMENT * (sizes.elements(value.name or "") or 0)
    before = len(list(_conversions(value, integer)))
    after = len(list(_conversions(value, integer - {layer})))
    return (after - before) * cost


def _conversions(value: ir.Value, integer: Collection[str]) -> Iterator[str]:
    """Yield what converts a tensor: to integers, to float."""
    readers = _readers(value)
    from_integers = _producer(value) in integer
    if not from_integers and any(name in integer for name in readers):
        yield "to integers"
    if from_integers and (value.is_graph_output() or any(name not in integer for name in readers)):
        yield "to float"


def _readers(value: ir.Value) -> list[str]:
    return [node.name or "" for node, _ in value.uses()]


def _producer(value: ir.Value) -> str:
    node = value.producer()
    return (node.name or "") if node is not None else ""

"""Work that a small file can ask for without end: nodes of functions that call each other, steps of loops."""

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from ptq_cli.core.errors import InvalidOnnxError

MOST_NODES = 250_000  # after inlining, a millisecond each; large exports have some 10,000
MOST_STEPS = 10_000_000  # of endless loops, nested ones multiplied: minutes of an empty loop
Key = tuple[str, str, str]


def require_inlinable(proto: onnx.ModelProto, what: str) -> None:
    """Check that the functions of a model end, and make no more than ``MOST_NODES`` nodes in place of calls.

    ONNX's own checker and shape inference follow each call, so this is asked before them.
    """
    bodies = {_key(item): Counter(map(_called, _nodes(item.node))) for item in proto.functions}
    sizes: dict[Key, int] = {}
    for key in bodies:
        _measure(key, bodies, sizes, what)
    count = sum(sizes.get(_called(node), 1) for node in _nodes(proto.graph.node)) if bodies else 0
    if count > MOST_NODES:
        raise InvalidOnnxError(
            f"the functions of model '{what}' would make {_about(count)} nodes, more than {MOST_NODES:,}",
            hint="export it without functions that call each other, or divide it",
        )


def _measure(start: Key, bodies: dict[Key, Counter[Key]], sizes: dict[Key, int], what: str) -> None:
    waiting, opened = [start], set[Key]()
    while waiting:
        key = waiting[-1]
        missing = [name for name in bodies[key] if name in bodies and name not in sizes]
        if key in sizes or not missing:
            waiting.pop()
            sizes[key] = sum(sizes.get(name, 1) * times for name, times in bodies[key].items())
        elif key in opened:
            raise InvalidOnnxError(
                f"the function '{key[1]}' of model '{what}' calls itself", hint="export it again"
            )
        else:
            opened.add(key)
            waiting += missing


def _about(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than 10^12"


def _key(function: onnx.FunctionProto) -> Key:
    return function.domain, function.name, getattr(function, "overload", "")


def _called(node: onnx.NodeProto) -> Key:
    return node.domain, node.op_type, getattr(node, "overload", "")


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def require_possible_steps(graph: ir.Graph, what: str, outside: int = 1) -> None:
    """Check that no Loop, times those around it, must take more than ``MOST_STEPS`` steps.

    One whose condition is computed may end early, and has often a number of steps that means "no limit".
    """
    for node in graph:
        steps = outside * _certain_steps(node)
        if steps > MOST_STEPS:
            raise InvalidOnnxError(
                f"the loop '{node.name or node.op_type}' of '{what}' takes {_about(steps)} steps, more than "
                f"{MOST_STEPS:,}",
                hint="export the model with fewer steps",
            )
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                require_possible_steps(attribute.as_graph(), what, steps)


def _certain_steps(node: ir.Node) -> int:
    """Return how many steps a node takes of the graph in it, at least: 1, if data decide."""
    if node.op_type != "Loop" or node.domain or len(node.inputs) < 2:
        return 1
    most, first = (ir.convenience.get_const_tensor(item) if item else None for item in node.inputs[:2])
    body = node.attributes["body"].as_graph()
    goes_on: ir.Value | None = body.outputs[0]
    while goes_on is not None and (made := goes_on.producer()) is not None and made.op_type == "Identity":
        goes_on = made.inputs[0]
    tensor = ir.convenience.get_const_tensor(goes_on) if goes_on is not None else None
    is_endless = goes_on is body.inputs[1] or (tensor is not None and bool(tensor.numpy().all()))
    starts = node.inputs[1] is None or (first is not None and bool(first.numpy().all()))
    return max(1, int(most.numpy().reshape(-1)[0])) if most is not None and is_endless and starts else 1

"""The times of a model's nodes, added up by the type of their operator."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ptq_cli.latency.operator_times import NodeTime


@dataclass(frozen=True, kw_only=True)
class OperatorSummary:
    """What all nodes of one type take.

    Attributes:
        operator: the type.
        nodes: how many there are.
        microseconds: of a run; 0 if ONNX Runtime merged all of them into others, or computed them before it.
        share: of the run, 0 to 1.
    """

    operator: str
    nodes: int
    microseconds: float
    share: float


def by_operator(nodes: Sequence[NodeTime]) -> tuple[OperatorSummary, ...]:
    """Return what each type of operator takes, the slowest first.

    Example:
        >>> nodes = [NodeTime("a", "Conv", 30.0), NodeTime("b", "Relu", 0.0), NodeTime("c", "Conv", 10.0)]
        >>> [(item.operator, item.nodes, item.microseconds, item.share) for item in by_operator(nodes)]
        [('Conv', 2, 40.0, 1.0), ('Relu', 1, 0.0, 0.0)]
    """
    times: dict[str, list[float]] = defaultdict(list)
    for node in nodes:
        times[node.operator].append(node.microseconds)
    whole = sum(node.microseconds for node in nodes) or 1.0
    found = (
        OperatorSummary(operator=name, nodes=len(own), microseconds=sum(own), share=sum(own) / whole)
        for name, own in times.items()
    )
    return tuple(sorted(found, key=lambda item: -item.microseconds))


def growth(first: Sequence[NodeTime], other: Sequence[NodeTime]) -> tuple[tuple[str, float], ...]:
    """Return the types of operators that take longer in another model than in the first, and by how much.

    Units:
        microseconds; the largest difference first.

    Example:
        >>> growth([NodeTime("a", "Conv", 9.0), NodeTime("b", "Add", 1.0)],
        ...     [NodeTime("a", "Conv", 5.0), NodeTime("b", "Add", 4.0), NodeTime("c", "Pad", 1.0)])
        (('Add', 3.0), ('Pad', 1.0))
    """
    before = {item.operator: item.microseconds for item in by_operator(first)}
    more = {item.operator: item.microseconds - before.get(item.operator, 0.0) for item in by_operator(other)}
    return tuple(sorted(((name, time) for name, time in more.items() if time > 0), key=lambda item: -item[1]))


def scaled_to(nodes: Sequence[NodeTime], microseconds: float) -> tuple[NodeTime, ...]:
    """Return the nodes with times that add up to those of a run without profiling, which costs time itself.

    Example:
        >>> nodes = [NodeTime("a", "Conv", 3.0), NodeTime("", "Add", 1.0)]
        >>> [node.microseconds for node in scaled_to(nodes, 2.0)]
        [1.5, 0.5]
    """
    scale = microseconds / (sum(node.microseconds for node in nodes) or 1.0)
    return tuple(replace(node, microseconds=scale * node.microseconds) for node in nodes)

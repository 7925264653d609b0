"""Which units are computed in integers so that a model takes the least time: a minimum cut.

Units on one side of the cut are integer, those on the other float. Each pays the time that it takes on its
side, and each tensor that crosses from one side to the other pays for being quantized or dequantized, once.

Source:
    Picard and Ratliff 1975, "Minimum cuts and related problems", Networks 5: such a choice as a minimum cut.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ptq_cli.latency.units import OUTSIDE, Circuit, Edge

INTEGER, FLOAT = "integer", "float"
NEVER = 1e12
"""Microseconds: more than anything takes."""


@dataclass(frozen=True)
class Seam:
    """What a tensor costs where it passes from integers to floats, or back.

    Attributes:
        fixed: microseconds for each.
        element: microseconds for each of its elements.
    """

    fixed: float
    element: float

    def cost(self, edge: Edge) -> float:
        """Return the microseconds of a tensor."""
        return self.fixed + self.element * edge.elements


def cheapest(
    circuit: Circuit, seam: Seam, *, integer: Collection[int] = (), floating: Collection[int] = ()
) -> frozenset[int]:
    """Return the units that are computed in integers in the fastest placement.

    Args:
        circuit: the units and the tensors between them.
        seam: what a tensor costs between the two sides.
        integer: units that must be integer.
        floating: units that must be float; those without a choice are anyway.

    Example:
        >>> from ptq_cli.latency.units import Unit
        >>> units = [Unit(nodes=(n,), choices=(n,), floating=f, integer=i) for n, f, i in
        ...     (("slow", 10.0, 40.0), ("fast", 90.0, 30.0))]
        >>> between = Edge(tensor="t", source=0, readers=(1,), elements=1000)
        >>> sorted(cheapest(Circuit(tuple(units), (between,)), Seam(5.0, 0.001)))
        [1]
        >>> sorted(cheapest(Circuit(tuple(units), (between,)), Seam(50.0, 0.001)))
        [0, 1]
    """
    import networkx  # takes a sixth of a second, and most exports place nothing by time

    graph = networkx.DiGraph()
    graph.add_nodes_from((INTEGER, FLOAT))
    for index, unit in enumerate(circuit.units):
        must_float = not unit.choices or index in floating
        graph.add_edge(index, FLOAT, capacity=NEVER if must_float else unit.integer)
        graph.add_edge(INTEGER, index, capacity=NEVER if index in integer else unit.floating)
    for edge in circuit.edges:
        source = FLOAT if edge.source is None else edge.source
        readers = [FLOAT if reader == OUTSIDE else reader for reader in edge.readers]
        cost = seam.cost(edge)
        # Each pays once for all its readers: through a node that follows the first of them.
        quantized, dequantized = ("quantized", edge.tensor), ("dequantized", edge.tensor)
        graph.add_edge(quantized, source, capacity=cost)
        graph.add_edge(source, dequantized, capacity=cost)
        for reader in readers:
            graph.add_edge(reader, quantized)  # Without a capacity: it is never cut.
            graph.add_edge(dequantized, reader)
    _, (side, _) = networkx.minimum_cut(graph, INTEGER, FLOAT)
    return frozenset(node for node in side if isinstance(node, int))


def predicted(circuit: Circuit, seam: Seam, integer: Collection[int]) -> float:
    """Return the microseconds of a placement."""
    units = sum(
        unit.integer if index in integer else unit.floating for index, unit in enumerate(circuit.units)
    )
    return units + sum(seam.cost(edge) * _crossings(edge, integer) for edge in circuit.edges)


def _crossings(edge: Edge, integer: Collection[int]) -> int:
    """Return 1 if a tensor is quantized for an integer reader, or dequantized for a float one; else 0."""
    source = edge.source is not None and edge.source in integer
    return int(any((reader in integer) != source for reader in edge.readers))

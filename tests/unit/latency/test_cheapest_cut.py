"""The cut is the best of all placements."""

from itertools import product

import numpy as np
import pytest

from ptq_cli.latency.fastest_placement import OUTSIDE, Circuit, Edge, Seam, Unit, cheapest, predicted
from tests.each_case import each_case


def random_circuit(seed: int) -> Circuit:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 9))
    units = tuple(
        Unit(
            nodes=(f"n{index}",),
            choices=(f"n{index}",) if random.random() < 0.85 else (),
            floating=float(random.integers(1, 100)),
            integer=float(random.integers(1, 100)),
        )
        for index in range(count)
    )
    edges = [Edge(tensor="x", source=None, readers=(0,), elements=1000)]
    for source in range(count):
        later = [index for index in range(source + 1, count) if random.random() < 0.5] or [OUTSIDE]
        edges.append(
            Edge(
                tensor=f"t{source}",
                source=source,
                readers=tuple(later),
                elements=int(random.integers(1, 90_000)),
            )
        )
    return Circuit(units, tuple(edges))


@each_case("seed", range(40))
def test_no_placement_is_faster(seed: int):
    circuit, seam = random_circuit(seed), Seam(6.0, 0.0004)
    may = [index for index, unit in enumerate(circuit.units) if unit.choices]
    best = min(
        predicted(circuit, seam, {index for index, taken in zip(may, sides, strict=True) if taken})
        for sides in product((False, True), repeat=len(may))
    )
    found = cheapest(circuit, seam)
    assert found <= set(may)
    assert predicted(circuit, seam, found) == pytest.approx(best)


@each_case("seed", range(10))
def test_what_is_demanded_is_kept(seed: int):
    circuit, seam = random_circuit(seed), Seam(6.0, 0.0004)
    may = [index for index, unit in enumerate(circuit.units) if unit.choices]
    found = cheapest(circuit, seam, integer=may[:1], floating=may[1:2])
    assert set(may[:1]) <= found and not found & set(may[1:2])


def test_a_tensor_pays_once_for_all_its_readers():
    units = tuple(Unit(nodes=(n,), choices=(n,), floating=1.0, integer=1.0) for n in "abc")
    circuit = Circuit(units, (Edge(tensor="t", source=0, readers=(1, 2), elements=100),))
    assert predicted(circuit, Seam(5.0, 0.01), {0}) == 3.0 + 6.0
    assert predicted(circuit, Seam(5.0, 0.01), {1, 2}) == 3.0 + 6.0
    assert predicted(circuit, Seam(5.0, 0.01), {0, 1, 2}) == 3.0

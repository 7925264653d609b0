"""A placement by times that a test writes itself."""

from dataclasses import replace
from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.placement.fastest_placement import (
    OUTSIDE,
    Circuit,
    Edge,
    MachineProfile,
    NodeTimes,
    PlacedUnit,
    Seam,
    cheapest,
    circuit_of,
    fastest_placement,
    predicted,
)
from ptq_cli.plan.planner import LayerChoices, make_plan
from ptq_cli.plan.target.target_file import load_target
from tests.each_case import each_case
from tests.properties.random_graphs import random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import build

TARGET = load_target("ort-cpu")
CHAIN = """(float[N,4,8,8] x) => (float[N,4,8,8] y)
    <float[4,4,1,1] u, float[4,4,1,1] v, float[4,4,1,1] w, float[4,4,1,1] z> {
    a = Conv(x, u) b = Conv(a, v) c = Conv(b, w) s = Sin(c) y = Conv(s, z) }"""


def profile(times: dict[str, tuple[float, float]], seam: float = 1.0) -> MachineProfile:
    return MachineProfile(
        model="",
        target="ort-cpu",
        runtime="",
        machine="",
        batch=1,
        threads=1,
        floating=sum(floating for floating, _ in times.values()),
        integer=sum(integer for _, integer in times.values()) + 4 * seam,
        spread=1.0,
        seam_fixed=seam,
        seam_element=0.0,
        nodes={name: NodeTimes(*pair) for name, pair in times.items()},
        elements={},
    )


def placed(times, seam=1.0):
    model = build(CHAIN)
    found = fastest_placement(model, make_plan(model, TARGET), TARGET, profile(times, seam))
    integer = [layer.name for layer in found.plan.layers if layer.quantized]
    return integer, dict(found.in_float), found.expected


def test_each_side_of_a_float_operator_is_decided_alone():
    integer, reasons, expected = placed(
        {"a": (90, 30), "b": (90, 30), "c": (90, 30), "s": (5, 5), "y": (20, 60)}
    )
    assert integer == ["a", "b", "c"]
    assert reasons == {"y": "faster in float here: 20 µs of 60 µs"}
    # The input is quantized, and what the Sin reads is dequantized.
    assert expected == 90 + 2 + 5 + 20


def test_one_that_is_slower_alone_goes_with_its_neighbors():
    integer, reasons, _ = placed(
        {"a": (20, 60), "b": (12, 10), "c": (20, 60), "s": (5, 5), "y": (90, 10)}, seam=8
    )
    assert integer == ["y"]
    assert reasons["b"].startswith("faster in float here together with its neighbors")


@pytest.mark.parametrize(("gain", "integer"), [(10, []), (200, ["a", "b", "c"])])
def test_a_layer_that_would_keep_the_next_one_in_float_takes_it_along_or_stays(gain: int, integer: list[str]):
    # ONNX Runtime makes a float Conv between two integer ones an integer one; so b alone cannot be float.
    found, _, expected = placed(
        {"a": (100, 20), "b": (10, 40), "c": (20 + gain, 20), "s": (5, 5), "y": (9, 90)}, seam=1
    )
    assert found == (integer or ["a"])
    assert expected == pytest.approx(20 + (10 + 20 + gain if not integer else 60) + 5 + 9 + 2)


def test_no_mix_is_taken_for_a_gain_within_the_error():
    times = {"a": (100, 99.9), "b": (100, 99.9), "c": (100, 99.9), "s": (5, 5), "y": (100, 100.05)}
    integer, reasons, expected = placed(times, seam=0.0)
    assert (integer, reasons, expected) == (["a", "b", "c", "y"], {}, profile(times, 0.0).integer)


def test_everything_stays_in_float_where_that_is_fastest():
    times = dict.fromkeys("abcsy", (10.0, 20.0))
    integer, reasons, expected = placed(times)
    assert integer == [] and set(reasons) == {"a", "b", "c", "y"} and expected == 50


def test_what_the_user_keeps_in_float_stays_there():
    model = build(CHAIN)
    plan = make_plan(model, TARGET, LayerChoices(excluded={"y": "excluded"}))
    found = fastest_placement(model, plan, TARGET, profile(dict.fromkeys("abcsy", (50, 10))))
    assert [layer.name for layer in found.plan.layers if layer.quantized] == ["a", "b", "c"]
    assert found.in_float == {}


def test_a_profile_can_be_of_a_machine_with_other_seams():
    times = {"a": (30, 20), "b": (30, 20), "c": (30, 20), "s": (5, 5), "y": (30, 20)}
    model = build(CHAIN)
    plan = make_plan(model, TARGET)
    cheap, dear = profile(times), replace(profile(times), seam_fixed=100.0, integer=500.0)
    assert not fastest_placement(model, plan, TARGET, cheap).in_float
    assert len(fastest_placement(model, plan, TARGET, dear).in_float) == 4


@each_case("seed", range(20))
def test_no_placement_needs_a_tensor_that_was_not_measured(seed: int):
    model = prepare(ir.from_proto(random_model(seed, 25, STEPS)), "random.onnx")
    try:
        plan = make_plan(model, TARGET)
    except NothingToQuantizeError:
        return
    random = np.random.default_rng(seed)
    times = {node.name or "": tuple(random.integers(1, 50, 2)) for node in model.graph}
    found = fastest_placement(model, plan, TARGET, profile(times, seam=3.0))
    assert set(found.plan.measured) <= set(plan.measured)
    assert found.expected <= min(
        sum(time[0] for time in times.values()), sum(time[1] for time in times.values()) + 12
    )


def random_circuit(seed: int) -> Circuit:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 9))
    units = tuple(
        PlacedUnit(
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
    units = tuple(PlacedUnit(nodes=(n,), choices=(n,), floating=1.0, integer=1.0) for n in "abc")
    circuit = Circuit(units, (Edge(tensor="t", source=0, readers=(1, 2), elements=100),))
    assert predicted(circuit, Seam(5.0, 0.01), {0}) == 3.0 + 6.0
    assert predicted(circuit, Seam(5.0, 0.01), {1, 2}) == 3.0 + 6.0
    assert predicted(circuit, Seam(5.0, 0.01), {0, 1, 2}) == 3.0


X = "(float[N,4,8,8] x) => (float[N,4,8,8] y)"
W = "<float[4,4,1,1] w, float[4,4,1,1] v>"


def nodes(graph: str) -> list[str]:
    circuit = circuit_of(build(graph).graph, set(), {}, {}, {})
    return [" ".join(unit.nodes) for unit in circuit.units]


@each_case(
    "body, units",
    [
        ("c = Conv(x, w) r = Relu(c) y = Conv(r, v)", ["c r", "y"]),
        ("c = Conv(x, w) h = HardSwish(c) y = Conv(h, v)", ["c h", "y"]),
        ("c = Conv(x, w) s = Sigmoid(c) m = Mul(c, s) y = Conv(m, v)", ["c s m", "y"]),
        ("c = Conv(x, w) d = Conv(c, v) a = Add(c, d) y = Relu(a)", ["c", "d", "a y"]),
        ("c = Conv(x, w) r = Relu(c) y = Add(c, r)", ["c", "r", "y"]),
        ("m = MaxPool<kernel_shape=[1,1]>(x) y = Relu(m)", ["m", "y"]),
    ],
)
def test_an_activation_function_is_placed_with_what_it_is_of(body: str, units: list[str]):
    assert nodes(f"{X} {W} {{ {body} }}") == units


def test_edges_name_who_makes_and_who_reads_a_tensor():
    graph = build(f"{X} {W} {{ c = Conv(x, w) r = Relu(c) d = Conv(r, v) y = Add(r, d) }}").graph
    times = {"c": 3.0, "r": 1.0, "d": 5.0}
    circuit = circuit_of(graph, {"c", "r", "d"}, times, {"c": 2.0}, {"r": 256})
    assert [(unit.floating, unit.integer, unit.choices) for unit in circuit.units] == [
        (4.0, 2.0, ("c", "r")), (5.0, 0.0, ("d",)), (0.0, 0.0, ()),
    ]  # fmt: skip
    assert [(edge.tensor, edge.source, edge.readers, edge.elements) for edge in circuit.edges] == [
        ("x", None, (0,), 0), ("r", 0, (1, 2), 256), ("d", 1, (2,), 0), ("y", 2, (OUTSIDE,), 0),
    ]  # fmt: skip


def test_what_a_nested_graph_reads_is_read_from_outside():
    text = """(float[N,4,8,8] x, bool b) => (float[N,4,8,8] y) <float[4,4,1,1] w> {
        c = Conv(x, w)
        y = If(b) <then_branch = t () => (float[N,4,8,8] a) { a = Neg(c) },
                   else_branch = e () => (float[N,4,8,8] d) { d = Abs(c) }> }"""
    edges = circuit_of(build(text).graph, set(), {}, {}, {}).edges
    assert {edge.tensor: edge.readers for edge in edges}["c"] == (OUTSIDE,)

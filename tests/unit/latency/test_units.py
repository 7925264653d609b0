"""Which nodes are placed as one, and which tensors lie between them."""

from ptq_cli.latency.fastest_placement import OUTSIDE, circuit_of
from tests.each_case import each_case
from tests.unit.plan.graphs import build

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

"""What is added to a layer's output is found behind its own bias, and nowhere else."""

from types import SimpleNamespace
from typing import cast

from ptq_cli.recover.quantized_layer import QuantizedLayer, residual_input
from tests.each_case import each_case
from tests.unit.plan.graphs import build

TYPES = "(float[n, 6] x) => (float[n, 6] y) <float[6, 6] w, float[6] b>"
GRAPHS = {
    "an Add": ("m = MatMul (x, w) y = Add (x, m)", "x"),
    "an Add behind the bias": ("m = MatMul (x, w) s = Add (m, b) y = Add (s, x)", "x"),
    "a bias alone": ("m = MatMul (x, w) y = Add (m, b)", ""),
    "itself": ("m = MatMul (x, w) y = Add (m, m)", ""),
    "another reader": ("m = MatMul (x, w) s = Add (m, x) y = Mul (s, m)", ""),
    "a Relu between": ("m = MatMul (x, w) r = Relu (m) y = Add (r, x)", ""),
}


@each_case("nodes, found", GRAPHS.values(), ids=GRAPHS.keys())
def test_residual_input(nodes: str, found: str) -> None:
    layer = cast(QuantizedLayer, SimpleNamespace(makes="m"))
    assert residual_input(build(f"{TYPES} {{ {nodes} }}"), layer) == found

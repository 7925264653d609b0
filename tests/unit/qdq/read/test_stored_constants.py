"""Constants are found past what unpacks them."""

import pytest

from ptq_cli.qdq.read.stored_constants import UNPACKING, is_unpacked, unpacking_nodes
from tests.unit.plan.graphs import build

LONG = 1500


@pytest.mark.parametrize("start", ["w", "x"])
def test_a_row_longer_than_python_calls_is_followed(start: str):
    assert "Transpose" in UNPACKING
    rows = [f"t0 = Transpose<perm=[1,0]>({start})"]
    rows += [f"t{index} = Transpose<perm=[1,0]>(t{index - 1})" for index in range(1, LONG)]
    graph = build(
        f"(float[4,4] x) => (float[4,4] y) <float[4,4] w> {{ {' '.join(rows)} y = Add(x, t{LONG - 1}) }}"
    )
    last = graph.graph.outputs[0].producer().inputs[1]
    assert is_unpacked(last) == (start == "w")
    assert not unpacking_nodes(graph)  # An Add is behind it, and no DequantizeLinear.

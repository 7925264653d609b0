"""How two files differ, part by part; ``tests/e2e/test_rederive.py`` has what a command says of it."""

import numpy as np
import onnx
import pytest

from ptq_cli.models.files.stored import StoredModel
from ptq_cli.receipts.differences import file_differences
from tests.graphs import parsed

W = np.float32([[1.0, 2.0], [3.0, 4.0]])
MADE = "(float[N,2] x) => (float[N,2] y) { [first] h = MatMul(x, w) [second] y = LeakyRelu<alpha = 0.5>(h) }"
# A file, its constants, and what is said of it beside the one above.
FOUND = {
    "a constant": (
        MADE,
        {"w": W + np.eye(2, dtype=np.float32)},
        ["constant w: 2 of 4 values differ, the first at [0, 0] is 2, expected 1"],
    ),
    "another type": (
        MADE,
        {"w": W.astype(np.float64)},
        ["constant w: is double[2, 2], expected float[2, 2]"],
    ),
    "another shape": (MADE, {"w": W[:1]}, ["constant w: is float[1, 2], expected float[2, 2]"]),
    "one more, one less": (
        MADE.replace("w)", "v)"),
        {"v": W},
        ["constant v: was added", "constant w: is missing", "node first: its inputs are x, v, expected x, w"],
    ),
    "minus zero": (MADE, {"w": W, "z": np.float32(-0.0)}, ["constant z: is -0, expected 0"]),
    "an attribute": (MADE.replace("0.5", "0.25"), {"w": W}, ["node second: has another alpha"]),
    "an operator": (
        MADE.replace("LeakyRelu<alpha = 0.5>", "Relu"),
        {"w": W},
        ["node second: is a Relu, expected LeakyRelu"],
    ),
    "a node less": (
        "(float[N,2] x) => (float[N,2] y) { [first] y = MatMul(x, w) }",
        {"w": W},
        ["node first: its outputs are y, expected h", "node second: is missing (LeakyRelu)"],
    ),
    "a name twice": (
        MADE.replace("y = Leaky", "r = Relu(h) [second] y = Leaky"),
        {"w": W},
        ["node second: is a Relu, expected LeakyRelu", "node second (2): was added (LeakyRelu)"],
    ),
    "an output": (
        MADE.replace("float[N,2] y", "float[M,2] y"),
        {"w": W},
        ["graph outputs: is 'y FLOAT [M,2]', expected 'y FLOAT [N,2]'"],
    ),
}


def stored(graph: str, constants: dict[str, np.ndarray]) -> StoredModel:
    return StoredModel(content=parsed(graph, constants).SerializeToString())


@pytest.mark.parametrize(("graph", "constants", "said"), FOUND.values(), ids=FOUND.keys())
def test_each_part_that_differs_is_named(
    graph: str, constants: dict[str, np.ndarray], said: list[str]
) -> None:
    wanted = {"w": W, **({"z": np.float32(0.0)} if "z" in constants else {})}
    found = file_differences(stored(graph, constants), stored(MADE, wanted))
    assert [f"{item.kind} {item.name}: {item.text}" for item in found] == said


def test_the_order_of_nodes_is_a_part() -> None:
    graph = "(float[N,2] x) => (float[N,2] y, float[N,2] z) { [a] y = Neg(x) [b] z = Abs(x) }"
    made = parsed(graph)
    turned = onnx.ModelProto()
    turned.CopyFrom(made)
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(made.graph.node))
    one, other = (StoredModel(content=model.SerializeToString()) for model in (turned, made))
    assert [item.text for item in file_differences(one, other)] == ["its nodes are in another order"]


def test_names_that_say_nothing_new_differ_in_bytes_alone() -> None:
    one, other = parsed(MADE, {"w": W}), parsed(MADE, {"w": W})
    one.graph.node[0].doc_string = "more"
    found = list(file_differences(*(StoredModel(content=item.SerializeToString()) for item in (one, other))))
    assert [(item.kind, item.name) for item in found] == [("bytes", "")]

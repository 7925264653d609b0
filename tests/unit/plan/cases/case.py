"""Small graphs in ONNX's text syntax, with what the plan for ``ort-cpu`` must say of each node.

``tests/contracts/small_graphs`` holds the plan to these tables, and ONNX Runtime to the plan. A table has for
each graph its name, inputs, constants and nodes, or its whole text, and behind an arrow what is said of its
nodes, which are named for their outputs: those that are computed in integers, a part of the reason of each
other, and the sites that take their parameters from another tensor. ``image`` and ``rows`` stand for two
layers around nodes that make ``a`` of ``c`` or ``g``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    graph: str
    integer: str
    floats: Mapping[str, str]
    shared: Mapping[str, str]
    """Sites that take their parameters from another tensor."""


AROUND = {
    "image": ("float[N,3,8,8] x", "float[3,3,1,1] w, float[3,3,1,1] v", "c = Conv(x, w) {} y = Conv(a, v)"),
    "rows": ("float[N,4,8] x", "float[8,8] u, float[8,8] v", "g = MatMul(x, u) {} y = MatMul(a, v)"),
}


def read_cases(table: str) -> dict[str, Case]:
    """Return the cases of a table by name."""
    entries = re.split(r"\n(?=\w)", table.strip())
    return dict(_case(" ".join(entry.split())) for entry in entries)


def _case(entry: str) -> tuple[str, Case]:
    drawn, _, told = entry.partition(" -> ")
    name, _, graph = drawn.partition(": ")
    integer, *others = told.split("; ")
    shared = dict(item.split(" shares ") for item in others if ": " not in item)
    floats = dict(item.split(": ", 1) for item in others if ": " in item)
    case = Case(
        graph=_graph(graph), integer=integer.removeprefix("integer").strip(), floats=floats, shared=shared
    )
    return name, case


def _graph(text: str) -> str:
    if text.startswith("("):
        return text
    inputs, constants, nodes, *output = (part.strip() for part in text.split("|"))
    if inputs in AROUND:
        inputs, own, around = AROUND[inputs]
        constants, nodes = ", ".join(filter(None, (own, constants))), around.format(nodes)
    declared = f" <{constants}>" if constants else ""
    return f"({inputs}) => ({output[0] if output else 'float[] y'}){declared} {{ {nodes} }}"

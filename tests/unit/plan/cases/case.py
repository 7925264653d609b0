"""Small graphs in ONNX's text syntax, with what the plan for ``ort-cpu`` must say of each node.

``tests/contracts/small_graphs`` holds the plan to these tables, and ONNX Runtime to the plan. A node is
named for its output. ``integer`` names the nodes that are computed in integers, ``floats`` the others with a
part of their reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Case:
    graph: str
    integer: str
    floats: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    """Sites that take their parameters from another tensor."""
    least_db: float = 20.0


MASK = "float[4,4] mask = {0,-10000,-10000,-10000,0,0,-10000,-10000,0,0,0,-10000,0,0,0,0}"
COST = "no integer operator reads it"
MASKED = "attention mask: with its huge constant in the range"
READS_MASK = "reads an attention mask"


def image(body: str, constants: str = "", output: str = "float[] y") -> str:
    """Conv, then ``body`` that makes ``a`` of ``c``, then Conv."""
    return (
        f"(float[N,3,8,8] x) => ({output}) <float[3,3,1,1] w, float[3,3,1,1] v{constants}> "
        f"{{ c = Conv(x, w)\n {body}\n y = Conv(a, v) }}"
    )


def rows(body: str, constants: str = "", output: str = "float[] y") -> str:
    """MatMul, then ``body`` that makes ``a`` of ``g``, then MatMul."""
    return (
        f"(float[N,4,8] x) => ({output}) <float[8,8] u, float[8,8] v{constants}> "
        f"{{ g = MatMul(x, u)\n {body}\n y = MatMul(a, v) }}"
    )


def layer(inputs: str, constants: str, *nodes: str) -> str:
    return f"({inputs}) => (float[] y) <{constants}> {{ {chr(10).join(nodes)} }}"

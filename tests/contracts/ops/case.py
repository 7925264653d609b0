"""An operator in a small real graph, and what must become of it on the way to a quantized model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptq_cli.core.tensors import Array


@dataclass(frozen=True, kw_only=True)
class OpCase:
    """A graph in ONNX's text syntax; a node is named for its first output.

    Attributes:
        graph: as it comes from an exporter, before preparation.
        integer: names of the nodes that are computed in integers.
        floats: the others, each with its reason or a part of it.
        kernels: how many integer kernels of which type ONNX Runtime runs.
        least_db: SQNR of every output on inputs that were not calibrated on.
        constants: values of weights that are not seeded noise.
        opset: of the graph.
        refused: where nothing in the graph can be quantized: what the error says.
    """

    graph: str
    integer: str = ""
    floats: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    least_db: float = 30.0
    constants: Mapping[str, Array] = field(default_factory=dict)
    opset: int = 20
    refused: str = ""


def graph(inputs: str, constants: str, *nodes: str, outputs: str = "float[] y") -> str:
    """Return the text of a graph."""
    declared = f" <{constants}>" if constants else ""
    return f"({inputs}) => ({outputs}){declared} {{ {chr(10).join(nodes)} }}"


COST = "no integer operator reads it: in integers it would lose accuracy and not be faster"
DISAPPEARS = "disappears into the quantized range of its result"
CONV_TRANSPOSE = "no integer ConvTranspose on CPUs: its weight is stored as int8 but computed in float"
SOFTMAX = "integer Softmax turns probabilities above the calibrated range into 0"

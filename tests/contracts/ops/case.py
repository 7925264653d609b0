"""An operator in a small real graph, and what must become of it on the way to a quantized model."""

import re
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


def read_operators(table: str) -> dict[str, OpCase]:
    """Read a name, inputs, constants, nodes and perhaps outputs of each, and behind an arrow what is said."""
    return dict(_operator(" ".join(entry.split())) for entry in re.split(r"\n(?=\w)", table.strip()))


def _operator(entry: str) -> tuple[str, OpCase]:
    drawn, _, told = entry.partition(" -> ")
    name, _, text = drawn.partition(": ")
    inputs, constants, nodes, *outputs = (part.strip() for part in text.split("|"))
    said = dict(re.match(r"([\w/]+):? ?(.*)", item).groups() for item in told.split("; "))  # type: ignore[union-attr]
    kernels = dict(reversed(item.split()) for item in said.pop("runs", "").split(", ") if item)
    return name, OpCase(
        graph=graph(inputs, constants, nodes, outputs=outputs[0] if outputs else "float[] y"),
        integer=said.pop("integer", ""),
        least_db=float(said.pop("least_db", "30")),
        opset=int(said.pop("opset", "20")),
        refused=said.pop("refused", ""),
        kernels={kernel: int(count) for kernel, count in kernels.items()},
        floats=said,
    )

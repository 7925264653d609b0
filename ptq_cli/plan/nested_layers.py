"""Layers of graphs nested in If, Loop and Scan: which of them have tensors that were not measured."""

from collections.abc import Callable, Collection

import onnx_ir as ir

from ptq_cli.models.graph_reading import every_node, labeled_graphs
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target

ITERATING = ("Loop", "Scan")
CONTAINS_LAYERS = "runs the layers of its nested graph, which are listed by their own names"


def nested_refusals(graph: ir.Graph, target: Target) -> dict[str, str]:
    """Return the layers of nested graphs that stay float whatever they compute, with the reason.

    Tensors of an If, Loop or Scan are handed out of it while the model is calibrated. An operator of another
    domain has graphs whose inputs and outputs only it knows.
    """
    return _reasons(graph, lambda node, _label, _inner: _refusal(node, target))


def layers_never_run(graph: ir.Graph, never_seen: Collection[str]) -> dict[str, str]:
    """Return the layers of nested graphs that were never run, with the reason."""

    def never_ran(node: ir.Node, label: str, inner: ir.Graph) -> str:
        values = [*inner.inputs, *(value for item in inner for value in item.outputs)]
        if not any(value.name in never_seen for value in values):
            return ""
        unknown = "so the ranges of its tensors are not known"
        if node.op_type in ITERATING:
            return f"the body of {node.op_type} '{node.name}' never ran during calibration, {unknown}"
        return f"the {label} of {node.op_type} '{node.name}' was never taken during calibration, {unknown}"

    return _reasons(graph, never_ran)


def _reasons(graph: ir.Graph, reason_of: Callable[[ir.Node, str, ir.Graph], str]) -> dict[str, str]:
    """Return a reason for all layers of a nested graph that has one itself, by the layer's name."""
    found: dict[str, str] = {}
    for node in graph:
        for label, inner in labeled_graphs(node).items():
            if reason := reason_of(node, label, inner):
                found |= {item.name or "": reason for item in every_node(inner)}
            else:
                found |= _reasons(inner, reason_of)
    return found


def _refusal(node: ir.Node, target: Target) -> str:
    what = f"is inside {node.domain}{'.' if node.domain else ''}{node.op_type} '{node.name}'"
    if node.domain or node.op_type not in ("If", *ITERATING):
        return f"{what}, whose tensors cannot be measured"
    if target.runtime != ONNXRUNTIME:
        return f"{what}: how target {target.name} treats pairs in a nested graph is not known"
    if any(node.attributes.get_ints("scan_output_axes", ())):
        return f"{what}, which stacks its results along another axis than the first: they are not measured"
    return ""

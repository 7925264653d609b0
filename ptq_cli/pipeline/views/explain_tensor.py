"""``explain``: one tensor, with where it comes from and who reads it."""

from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.core.errors import UnknownNameError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.graph.graph_reading import every_value, is_nested, value_spec
from ptq_cli.pipeline.run.resolve import Request
from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.views.calibration_view import (
    CalibrationView,
    TensorView,
    shown_name,
    view_calibration,
)
from ptq_cli.plan.sites import Plan


@dataclass(frozen=True)
class NodeView:
    """A node beside the tensor.

    Attributes:
        name: the node's.
        op: its operator type.
        integer: whether it is computed in integers.
        reason: why not; empty if it is.
    """

    name: str
    op: str
    integer: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One tensor.

    Attributes:
        calibration: that it is a part of.
        tensor: what was measured of it, and what each method makes of it.
        spec: name, dtype and shape.
        producer: the node that computes it; None for an input of the model.
        readers: the nodes that read it.
        is_output: whether it is an output of the model, or of the nested graph that it is in.
        nested: whether it is in a nested graph.
        sharing: other tensors that take its parameters, because they hold the same values or must fit it.
    """

    calibration: CalibrationView
    tensor: TensorView
    spec: TensorSpec
    producer: NodeView | None
    readers: tuple[NodeView, ...]
    is_output: bool
    nested: bool
    sharing: tuple[str, ...]


def explain_tensor(request: Request, run: RunDirectory, name: str) -> Explanation:
    """Return what is known of a tensor; nothing is run and nothing written.

    Args:
        request: may change amax settings.
        run: the run directory.
        name: of the tensor; of one that takes its parameters from it; or of the layer that computes it. A
            name with control characters may be written with ``?`` for each, as it is shown.

    Raises:
        UnknownNameError: no tensor of that name was measured.
        PtqError: as ``view_calibration`` does.
    """
    calibration = view_calibration(request, run, lambda model, plan: (_find(model, plan, name),))
    (tensor,) = calibration.tensors
    value = _values(calibration.model)[tensor.name]
    producer = value.producer()
    layers = {layer.name: layer for layer in calibration.exported.layers}

    def view(node: ir.Node) -> NodeView:
        layer = layers[node.name or ""]
        reason = "" if layer.quantized else layer.reason
        return NodeView(node.name or "", node.op_type, layer.quantized, reason)

    readers = dict.fromkeys(node for node, _ in value.uses())
    return Explanation(
        calibration=calibration,
        tensor=tensor,
        spec=value_spec(value),
        producer=view(producer) if producer is not None else None,
        readers=tuple(view(node) for node in readers),
        is_output=value.is_graph_output(),
        nested=is_nested(value),
        sharing=tuple(
            site.tensor
            for site in calibration.plan.activations.values()
            if site.source == tensor.name and site.tensor != tensor.name
        ),
    )


def _find(model: ir.Model, plan: Plan, name: str) -> str:
    """Return the measured tensor that a name means."""
    # In the order in which a name counts: the tensor itself, one that shares its parameters, the layer.
    meant: dict[str, str] = {}
    for site in plan.activations.values():
        meant.setdefault(site.tensor, site.source)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name in meant and node.name:
                meant.setdefault(node.name, meant[value.name])
    for known in list(meant):
        meant.setdefault(shown_name(known), meant[known])
    if name in meant:
        return meant[name]
    if name in _values(model) or name in {node.name for node in model.graph.all_nodes()}:
        raise UnknownNameError(
            f"'{name}' is in the model but was not measured, because it is not quantized for {plan.target}",
            hint="ptq inspect says why; ptq calibration show lists the tensors that were measured",
        )
    raise UnknownNameError(
        f"no tensor '{name}' was calibrated{did_you_mean(name, list(meant))}",
        hint="ptq calibration show lists the tensors",
    )


def _values(model: ir.Model) -> dict[str, ir.Value]:
    graph = model.graph
    values = [*every_value(graph), *graph.initializers.values()]
    return {value.name: value for value in values if value.name}

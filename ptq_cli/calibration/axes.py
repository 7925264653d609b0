"""Along which axis the channels of which activation are measured: ``calibration.activation_axis``."""

from collections.abc import Mapping

import onnx_ir as ir

from ptq_cli.amax.overrides import matches, nearest_match
from ptq_cli.collectors.channel_collector import require_axis
from ptq_cli.core.errors import ActivationAxisError, RecipeValueError
from ptq_cli.models.graph_reading import every_value, nested_values
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.sites import Plan

_Names = tuple[str, ...]


def activation_axes(model: ir.Model, plan: Plan, wanted: Mapping[str, int]) -> dict[str, int]:
    """The axis of each measured tensor whose channels are asked for, from the first if it can be.

    A tensor is meant by its own name and by that of the layer that computes it; a name counts more than a
    pattern that matches. Tensors that take their parameters from another are not measured, and so not meant.
    """
    values = {value.name or "": value for value in every_value(model.graph)}
    measured = {source: _names(values[source]) for source in plan.measured}
    nested = nested_values(model.graph)
    tensors = {source: names for source, names in measured.items() if source not in nested}
    _require_main_graph(wanted, tensors, {name: measured[name] for name in measured if name in nested})
    _require_matches(wanted, tensors, plan)
    axes = {}
    for source, names in tensors.items():
        asked = {key: axis for key, axis in wanted.items() if key in names}
        asked = asked or {key: axis for key, axis in wanted.items() if matches(key, names)}
        if len(set(asked.values())) > 1:
            one, other = sorted(asked, key=lambda key: asked[key])[:: len(asked) - 1]
            raise ActivationAxisError(
                f"'{one}' asks for axis {asked[one]} of tensor '{source}', '{other}' for axis {asked[other]}",
                hint=f"name '{source}' itself: a name takes precedence over a pattern",
            )
        if asked:
            axes[source] = _checked(values[source], next(iter(asked.values())), model)
    return axes


def _names(value: ir.Value) -> _Names:
    producer = value.producer()
    return tuple(filter(None, (value.name, producer.name if producer is not None else None)))


def _require_main_graph(
    wanted: Mapping[str, int], tensors: Mapping[str, _Names], nested: Mapping[str, _Names]
) -> None:
    """Raise for a key that only tensors of nested graphs match: their values come without their axes."""
    for key in wanted:
        found = next((source for source, names in nested.items() if matches(key, names)), None)
        if found is not None and not any(matches(key, names) for names in tensors.values()):
            raise ActivationAxisError(
                f"activation_axis '{key}': tensor '{found}' is inside an If, Loop or Scan, where channels "
                "are not measured",
                hint="name a tensor of the main graph; ptq inspect lists the layers",
            )


def _require_matches(wanted: Mapping[str, int], tensors: Mapping[str, _Names], plan: Plan) -> None:
    known = list(dict.fromkeys(name for names in tensors.values() for name in names))
    for key in wanted:
        if matches(key, known):
            continue
        sharing = next((site for name, site in plan.activations.items() if matches(key, (name,))), None)
        if sharing is not None:
            raise RecipeValueError(
                f"activation_axis '{key}': '{sharing.tensor}' takes its range from '{sharing.source}', "
                "so it is not measured itself",
                hint=f"name '{sharing.source}', and the axis that the channels have there",
            )
        raise RecipeValueError(
            f"activation_axis '{key}' matches no activation that is quantized{nearest_match(key, known)}",
            hint="run `ptq inspect` to list the layers; * matches any part of a name",
        )


def _checked(value: ir.Value, axis: int, model: ir.Model) -> int:
    if value.shape is None:
        return axis  # The first batch will tell.
    name, sizes = value.name or "", list(value.shape)
    found = require_axis(axis, tuple(size if isinstance(size, int) else None for size in sizes), name)
    axes = {spec.name: spec.samples_axis for spec in input_specs(model)}
    batch = {
        item.shape[place]
        for item in model.graph.inputs
        if item.shape is not None and (place := axes.get(item.name or "")) is not None
    }
    size = sizes[found]
    if isinstance(size, ir.SymbolicDim) and size.value is not None and size in batch:
        raise ActivationAxisError(
            f"axis {axis} of tensor '{name}' holds its samples, not its channels",
            hint="give the axis of its channels",
        )
    return found

"""What a page shows of the models and the calibration: histograms, ranges, shapes and types."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.choice import Choice, count_clipped, counts_between, expected_error, signed_bins
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.models.graph_reading import every_node, value_spec
from ptq_cli.models.pair_operators import QUANTIZE, integers_of
from ptq_cli.pipeline.views.calibration_view import MethodView, TensorView, view_tensors
from ptq_cli.placement.placed_graph import place
from ptq_cli.placement.ranges import statistics_of
from ptq_cli.placement.tensor_settings import TensorRecipe
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.read.pair_grids import grid_of
from ptq_cli.report.html.fact_rows import LayerEvidence, MethodRange, TensorEvidence

BARS = 72
MOST_DRAWN = 400
"""Tensors that get a histogram and every method's range; a search takes some 10 ms, and 3 kB of the page."""
MOST_STEPS = 3
"""Operators that may lie between an integer layer and the QuantizeLinear of its output: a ReLU, a Clip."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a run holds."""

    float_model: ir.Model
    quantized_model: ir.Model
    calibration: Calibration
    plan: Plan
    target: Target
    recipe: TensorRecipe


def gather(
    material: Material,
) -> tuple[tuple[LayerEvidence, ...], tuple[TensorEvidence, ...], tuple[str, ...]]:
    """The layers, the quantized activations, and what is left out of them."""
    model = material.float_model
    placement = place(model, material.plan, material.target, material.recipe, material.calibration)
    plan, settings = placement.plan, placement.settings.activations
    stored = dict(stored_parameters(material.quantized_model))
    # Tensors that are tied share a scale, and it was decided from the union of what was counted of them.
    sources = [name for name in plan.sources if name in stored]
    statistics = {name: statistics_of(plan, name, material.calibration) for name in sources}
    drawn = _worst(statistics, stored)
    views = {view.name: view for view in view_tensors(plan, settings, material.calibration, drawn)}
    tensors = tuple(_tensor(name, statistics[name], stored[name], views.get(name)) for name in sources)
    left_out = len(sources) - len(drawn)
    notes = (
        (f"{left_out} more tensors are not shown; these {MOST_DRAWN} have the lowest expected SQNR",)
        if left_out
        else ()
    )
    return tuple(_layers(model, plan, stored)), tensors, notes


def stored_parameters(model: ir.Model) -> Iterator[tuple[str, QuantParameters]]:
    """Yield each quantized tensor of a model, by its name in the float model, with its parameters.

    A pair whose scale is not a constant of one element is ignored.
    """
    for node in every_node(model.graph):
        parameters = grid_of(node).parameters if node.op_type == QUANTIZE else None
        if parameters is None or node.inputs[0] is None:
            continue
        yield node.inputs[0].name or "", parameters
        # An output of the model has given its name to what stands behind the pair.
        for reader in integers_of(node).consumers():
            yield reader.outputs[0].name or "", parameters


def _worst(
    statistics: Mapping[str, TensorStatistics], stored: Mapping[str, QuantParameters]
) -> tuple[str, ...]:
    sources = tuple(statistics)
    if len(sources) <= MOST_DRAWN:
        return sources

    def expected(name: str) -> float:
        found = statistics[name]
        if found.histogram is None:
            return 0.0
        return expected_error(found, found.histogram, stored[name]).sqnr_db

    worst = set(sorted(sources, key=expected)[:MOST_DRAWN])
    return tuple(name for name in sources if name in worst)


def _tensor(
    name: str, statistics: TensorStatistics, parameters: QuantParameters, view: TensorView | None
) -> TensorEvidence:
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    evidence = TensorEvidence(
        name=name,
        format=parameters.format.name,
        low=low,
        high=high,
        values=statistics.count,
        zeros=statistics.zeros if statistics.histogram is not None else None,
        chosen=_chosen(statistics, parameters, view),
        ranges=(),
    )
    if view is None:
        return evidence
    ranges = tuple(_method_range(item) for item in view.methods.values())
    return replace(evidence, ranges=ranges, counts=_counts(statistics, low, high))


def _chosen(
    statistics: TensorStatistics, parameters: QuantParameters, view: TensorView | None
) -> MethodRange:
    """The range that the file has, named by the method that chose it, if one at hand did."""
    if view is not None:
        same = [item for item in view.methods.values() if _equal(item.parameters, parameters)]
        found = next((item for item in same if item.method == view.chosen), same[0] if same else None)
        if found is not None:
            return _method_range(found)
    lowest, highest = parameters.format.qmin, parameters.format.qmax
    scale, zero_point = float(parameters.scale), int(parameters.zero_point)
    low, high = (lowest - zero_point) * scale, (highest - zero_point) * scale
    histogram = statistics.histogram
    if histogram is None:
        return MethodRange(method="", low=low, high=high)
    clipped = count_clipped(statistics, histogram, Choice(low, high))
    error = expected_error(statistics, histogram, parameters)
    return MethodRange(method="", low=low, high=high, sqnr_db=error.sqnr_db, clipped=clipped[0])


def _equal(one: QuantParameters, other: QuantParameters) -> bool:
    return bool(one.scale == other.scale) and bool(one.zero_point == other.zero_point)


def _method_range(view: MethodView) -> MethodRange:
    sqnr = view.error.sqnr_db if view.error is not None else None
    # Between two numbers; so many are surely beyond the range.
    clipped = view.clipped[0] if view.clipped is not None else None
    return MethodRange(
        method=view.method, low=view.choice.low, high=view.choice.high, sqnr_db=sqnr, clipped=clipped
    )


def _counts(statistics: TensorStatistics, low: float, high: float) -> tuple[float, ...]:
    histogram = statistics.histogram
    if histogram is None or not histogram.counts.size or not high > low:
        return ()
    found = counts_between(signed_bins(statistics, histogram), np.linspace(low, high, BARS + 1))
    return tuple(float(count) for count in found)


def _layers(model: ir.Model, plan: Plan, stored: Mapping[str, QuantParameters]) -> Iterator[LayerEvidence]:
    weights = {
        site.node: f"{'dynamic uint8, ' if site.dynamic else ''}{site.format.name} weight"
        for site in plan.weights
    }
    weights |= {layer.name: f"weight: {layer.weight}" for layer in plan.layers if layer.weight}
    integer = {layer.name for layer in plan.layers if layer.quantized}
    work = multiply_accumulates(model, {}).counts
    for node in every_node(model.graph):
        name = node.name or ""
        spec = value_spec(node.outputs[0])
        held = _held_by(node.outputs[0], stored) if name in integer else None
        site = plan.activations.get(held) if held is not None else None
        dtype = stored[held].format.name if held is not None else str(spec.dtype)
        text = ", ".join(filter(None, (dtype, weights.get(name))))
        yield LayerEvidence(
            name=name,
            dtype=text,
            shape=spec.shape,
            tensor=site.source if site is not None else "",
            multiply_accumulates=work.get(name),
        )


def _held_by(value: ir.Value, stored: Mapping[str, QuantParameters]) -> str | None:
    """The quantized tensor that holds a layer's output; it may lie behind a ReLU."""
    for _ in range(MOST_STEPS):
        if value.name in stored:
            return value.name
        readers = list(value.consumers())
        if len(readers) != 1 or len(readers[0].outputs) != 1:
            return None
        value = readers[0].outputs[0]
    return None

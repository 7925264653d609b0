"""One layer's integers, scales and bias, from the rows that it reads and should make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.stored import mapped
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.recovery.code_search import CodeGrid, Codes, search_codes
from ptq_cli.recovery.layer_rows import LayerRows, Part
from ptq_cli.recovery.least_squares import Quadratic, fit_least_squares, quadratic_forms
from ptq_cli.recovery.quantized_layer import QuantizedLayer, constant_array
from ptq_cli.recovery.second_moments import Float64s, SecondMoments, second_moments

STEPS = 32767
"""On either side of 0, of targets and of inputs that are floats: 16 bits are finer than a layer's error."""
LARGEST_BIAS = 2**30
"""In steps. Half of int32: the other half is for the products that the kernel adds to it."""
BIAS_ROOM = 4
"""How many times as large as it is a bias may become before its scale would be too small for it."""
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, kw_only=True)
class SolvedLayer:
    """What was chosen for a layer.

    Attributes:
        before, after: error of its output, as a share of what its output varies by, on the rows that it was
            chosen from.
        damped: there were fewer rows than inputs.
        constants: new values of the quantized graph's initializers, by name.
    """

    before: float
    after: float
    damped: bool
    constants: Mapping[str, Array] = field(repr=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Given:
    """A layer as it is.

    Attributes:
        weight: of the float model, with a row for each output channel.
        codes: its integers and scales.
        bias: in real units; None if there is none that can be changed.
        step: of the inputs.
        zero: zero point of the inputs.
        target_steps: of the targets.
        largest: magnitude of the mean target of each channel.
    """

    weight: Float64s
    codes: Codes
    bias: Float64s | None
    step: float
    zero: int
    target_steps: Float64s
    largest: Float64s


def solve_layer(
    twins: TwinGraphs, layer: QuantizedLayer, rows: LayerRows, *, threads: int
) -> SolvedLayer | str:
    """Return the best constants of a layer that are found, or why it stays as it is.

    Args:
        twins: both models.
        layer: of them.
        rows: what it reads in the quantized model, and makes in the float model.
        threads: share its channels; the result does not depend on them.
    """
    parts = list(rows.parts())
    if not parts:
        return "no data reached this part of the model"
    if not all(np.isfinite(array).all() for part in parts for array in part):
        return "what a layer reads or makes may not be NaN or Inf"
    given = _given(twins, layer, parts)
    found = Codes(integers=given.codes.integers.copy(), scales=given.codes.scales.copy())
    errors = np.zeros(3)
    bias = np.zeros(len(given.weight))
    damped = False
    for group, moments in enumerate(_moments(layer, given, parts)):
        own = _group_slice(len(given.weight), layer.geometry.groups, group)
        quadratic = fit_least_squares(
            moments,
            given.weight[own],
            input_step=given.step,
            target_step=given.target_steps[own],
            has_bias=given.bias is not None,
        )
        nearest = Codes(integers=given.codes.integers[own], scales=given.codes.scales[own])
        better = search_codes(quadratic, _grid(layer, given, own), nearest, threads=threads)
        found.integers[own], found.scales[own] = better.integers, better.scales
        weights = better.weights(layer.geometry.block)
        errors += _errors(quadratic, given.weight[own], nearest.weights(layer.geometry.block), weights)
        damped |= quadratic.damped
        if quadratic.input_mean is not None and quadratic.target_mean is not None:
            bias[own] = quadratic.target_mean - (weights * quadratic.input_mean).sum(axis=1)
    power = errors[2] if errors[2] > 0.0 else 1.0
    return SolvedLayer(
        before=float(errors[0] / power),
        after=float(errors[1] / power),
        damped=damped,
        constants=_weight_constants(twins, layer, found) | _bias_constants(twins, layer, given, found, bias),
    )


def _given(twins: TwinGraphs, layer: QuantizedLayer, parts: Sequence[Part]) -> _Given:
    geometry, model = layer.geometry, twins.quantized_model
    with mapped(twins.float_model.graph.initializers[layer.site.tensor]) as array:
        weight = geometry.rows(array)
    scale = constant_array(model, layer.weight.scale).astype(np.float64)
    scales = (
        geometry.rows(scale)
        if geometry.blocks > 1
        else np.broadcast_to(scale.reshape(-1, 1), (len(weight), 1))
    )
    values = geometry.rows(constant_array(model, layer.weight.values))
    integers = np.rint(values / scales[:, geometry.block]) if layer.weight.multiples else values
    bias = None
    if layer.bias is not None:
        bias = constant_array(model, layer.bias.values).astype(np.float64).reshape(-1)
        if layer.bias.scale:
            bias = bias * constant_array(model, layer.bias.scale).astype(np.float64).reshape(-1)
    largest = np.max([np.abs(made).max(axis=0) for _, made in parts], axis=0).astype(np.float64)
    if layer.parameters is not None:
        step, zero = float(layer.parameters.scale), int(layer.parameters.zero_point)
    else:
        step, zero = _steps(np.max([np.abs(read).max() for read, _ in parts])).item(), 0
    return _Given(
        weight=weight,
        codes=Codes(integers=integers, scales=scales.copy()),
        bias=bias,
        step=step,
        zero=zero,
        target_steps=_steps(largest),
        largest=largest,
    )


def _steps(largest: Float64s) -> Float64s:
    return np.where(largest > 0.0, np.asarray(largest, np.float64) / STEPS, 1.0)


def _moments(layer: QuantizedLayer, given: _Given, parts: Sequence[Part]) -> list[SecondMoments]:
    """Return the moments of each group; exact, whatever the parts are."""
    groups, size = layer.geometry.groups, given.weight.shape[1]
    totals: list[SecondMoments] = []
    for read, made in parts:
        inputs = read.astype(np.float64)
        inputs = np.rint(inputs / given.step) if layer.parameters is None else inputs - given.zero
        targets = np.rint(made.astype(np.float64) / given.target_steps)
        found = [
            second_moments(
                inputs[:, group * size : (group + 1) * size],
                targets[:, _group_slice(len(given.weight), groups, group)],
            )
            for group in range(groups)
        ]
        totals = [one.merge(other) for one, other in zip(totals, found, strict=True)] if totals else found
    return totals


def _group_slice(channels: int, groups: int, group: int) -> slice:
    each = channels // groups
    return slice(group * each, (group + 1) * each)


def _grid(layer: QuantizedLayer, given: _Given, own: slice) -> CodeGrid:
    least = np.full(len(given.weight), SMALLEST_SCALE if layer.free else 0.0)
    if layer.free and given.bias is not None and layer.bias is not None and layer.bias.scale:
        largest = np.maximum(np.abs(given.bias), given.largest)
        least = np.maximum(least, BIAS_ROOM * largest / (given.step * LARGEST_BIAS))
    format = layer.site.format
    return CodeGrid(
        lowest=format.qmin,
        highest=format.qmax,
        block=layer.geometry.block,
        least=least[own],
        free=layer.free,
    )


def _errors(quadratic: Quadratic, weight: Float64s, before: Float64s, after: Float64s) -> Float64s:
    """Return the errors of both, and what the layer's output varies by, over all channels."""
    power = quadratic_forms(quadratic.curvature, weight)
    return np.array([quadratic.error(before).sum(), quadratic.error(after).sum(), power.sum()])


def _weight_constants(twins: TwinGraphs, layer: QuantizedLayer, found: Codes) -> dict[str, Array]:
    geometry, graph = layer.geometry, twins.quantized_model.graph
    place = layer.weight
    integers = found.weights(geometry.block) if place.multiples else found.integers
    constants = {place.values: geometry.in_place(integers, _shape(graph.initializers[place.values]))}
    if layer.free:
        constants[place.scale] = geometry.in_place(found.scales, _shape(graph.initializers[place.scale]))
    return constants


def _bias_constants(
    twins: TwinGraphs, layer: QuantizedLayer, given: _Given, found: Codes, bias: Float64s
) -> dict[str, Array]:
    if layer.bias is None or given.bias is None:
        return {}
    graph, place = twins.quantized_model.graph, layer.bias
    wanted = bias + given.bias if layer.bias_apart else bias
    shape = _shape(graph.initializers[place.values])
    if not place.scale:
        return {place.values: wanted.reshape(shape)}
    # As the integer kernels compute it.
    scale = (np.float32(given.step) * found.scales[:, 0].astype(np.float32)).astype(np.float32)
    ends = np.iinfo(np.int32)
    integers = np.clip(np.rint(wanted / scale.astype(np.float64)), ends.min, ends.max)
    constants = {place.values: integers.reshape(shape)}
    if layer.free:
        constants[place.scale] = scale.reshape(_shape(graph.initializers[place.scale]))
    return constants


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(value.const_value.shape.numpy()) if value.const_value is not None else ()

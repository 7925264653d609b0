"""Operators that stay float between integers, since their integer form would add too much noise.

A HardSwish in integers rounds its gate besides its input and its result. That is nearly free where x
spreads around 0; where all of x lies in a small part of its grid, the gate has few steps for it. The
statistics say where, so what the form costs is known before anything is written.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.amax.expected_error import signed_bins
from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.arithmetic import QuantParameters, fake_quantize
from ptq_cli.models.graph_reading import every_node
from ptq_cli.plan.sites import LayerPlan, Plan
from ptq_cli.plan.target.rules import CLAMPED_SUM
from ptq_cli.qdq.write.integer_forms import Values, clamped_sum, hard_swish

MOST_NOISE = 1.0  # dB that an integer form may add to the noise of an operator's result
POINTS = 1024  # between the smallest and the largest value, where no histogram says how they are spread


def without_noisy_forms(
    model: ir.Model, plan: Plan, grids: Mapping[str, QuantParameters], calibration: Calibration
) -> Plan:
    """Return the plan with those operators in float, between their pairs, whose integer form adds noise."""
    nodes = {node.name or "": node for node in every_node(model.graph)}
    return replace(
        plan,
        layers=tuple(
            _in_float(layer, _noise(nodes[layer.name], plan, grids, calibration))
            if layer.quantized and layer.written_as == CLAMPED_SUM
            else layer
            for layer in plan.layers
        ),
    )


def _in_float(layer: LayerPlan, noise: float) -> LayerPlan:
    if noise <= MOST_NOISE:
        return layer
    reason = f"its integer form would add {noise:.1f} dB of noise, more than {MOST_NOISE:g} dB"
    return replace(layer, quantized=False, between_pairs=True, written_as="", reason=reason)


def _noise(
    node: ir.Node, plan: Plan, grids: Mapping[str, QuantParameters], calibration: Calibration
) -> float:
    result = node.outputs[0]
    while result.name not in plan.activations:  # a Relu or Clip behind it was folded into the result's range
        result = next(iter(result.uses())).node.outputs[0]
    edges = [value.name or "" for value in (node.inputs[0], result) if value is not None]
    before, after = (plan.activations[name].source for name in edges)
    return added_noise(calibration.statistics[before], grids[before], grids[after])


def added_noise(statistics: TensorStatistics, before: QuantParameters, after: QuantParameters) -> float:
    """Return the noise that integers add to a HardSwish's result, beside float between its pairs.

    Units:
        decibels.

    Edge case:
        Infinite where only the integer form has noise. Without a histogram the values are taken to be spread
        evenly from the smallest to the largest.
    """
    x, counts = _values(statistics)
    exact, rounded = hard_swish(x), fake_quantize(x, before).astype(np.float64)
    floating, integer = (
        float(np.sum(counts * (fake_quantize(found, after) - exact) ** 2))
        for found in (hard_swish(rounded), clamped_sum(rounded, before))
    )
    if integer <= floating:
        return 0.0
    return 10.0 * math.log10(integer / floating) if floating else math.inf


def _values(statistics: TensorStatistics) -> tuple[Values, Values]:
    if statistics.histogram is None:
        return np.linspace(statistics.low, statistics.high, POINTS), np.ones(POINTS)
    bins = signed_bins(statistics, statistics.histogram)
    return (bins.low + bins.high) / 2, bins.counts.astype(np.float64)

"""Statistics of tensors that only have another shape than a measured one, or are part of it."""

from dataclasses import replace

import onnx_ir as ir

from ptq_cli.collectors.calibration_file import Calibration
from ptq_cli.plan.sites import Plan

# Operators whose result has all the values of their first input and no others, and those with some of them.
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
PARTS = frozenset({"Gather", "MaxPool", "Slice", "Split"})


def with_moved_statistics(calibration: Calibration, graph: ir.Graph) -> Calibration:
    """Return a calibration that also has the statistics of tensors with the same values as a measured one.

    What is excluded moves the place where a tensor is quantized behind a Reshape or before it, and the
    calibration measured the other side. Statistics of channels are not carried over: the axis may be another
    one.
    """
    statistics = dict(calibration.statistics)
    pairs = [
        (node.inputs[0].name or "", node.outputs[0].name or "")
        for node in graph
        if node.op_type in VIEWS and node.domain == "" and node.inputs and node.inputs[0] is not None
    ]
    steps = [*pairs, *((result, source) for source, result in reversed(pairs))]
    for known, other in steps:
        if known in statistics and other not in statistics:
            statistics[other] = replace(statistics[known], channels=None)
    return (
        calibration
        if len(statistics) == len(calibration.statistics)
        else replace(calibration, statistics=statistics)
    )


def with_statistics_of_parts(calibration: Calibration, plan: Plan, graph: ir.Graph) -> Calibration:
    """Return a calibration with the statistics of the whole for tensors of a plan that are parts of it.

    Where a layer in float cuts a tensor, the calibration measured it before the cut alone; the range of the
    whole holds the part's.
    """
    statistics = dict(calibration.statistics)
    missing = set(plan.measured) - set(statistics)
    for node in graph if missing else ():
        whole = (
            node.inputs[0].name if node.op_type in PARTS and node.domain == "" and node.inputs[0] else None
        )
        if whole in statistics:
            own = replace(statistics[whole], channels=None)
            statistics |= {value.name: own for value in node.outputs if value.name in missing}
    return replace(calibration, statistics=statistics) if missing else calibration

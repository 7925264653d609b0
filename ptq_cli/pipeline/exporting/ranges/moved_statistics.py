"""A tensor that only has another shape than a measured one needs no measurement."""

from dataclasses import replace

import onnx_ir as ir

from ptq_cli.collectors.artifact.calibration_file import Calibration

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result has all the values of their first input, and no others."""


def with_moved_statistics(calibration: Calibration, graph: ir.Graph) -> Calibration:
    """Return a calibration that also has the statistics of tensors with the same values as a measured one.

    What is excluded moves the place where a tensor is quantized behind a Reshape or before it,
    and the calibration measured the other side.

    Edge case:
        Statistics of channels are not carried over: the axis may be another one.
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

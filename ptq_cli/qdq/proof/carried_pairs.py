"""Which pairs stand around a value, past the operators that a runtime moves a pair over."""

from collections.abc import Iterator

import onnx_ir as ir

from ptq_cli.models.graph.graph_reading import is_nested
from ptq_cli.models.operators.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.questions.neighbors import rule_of
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target

CARRIED_PAST = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators past which ONNX Runtime 1.31 moves a lone QuantizeLinear up and a DequantizeLinear down."""


def _carries_pairs(node: ir.Node, target: Target) -> bool:
    """Return whether a runtime moves a pair past an operator that moves values: ONNX Runtime not past all."""
    rule = rule_of(node, target)
    if rule is None or rule.kind != "same":
        return False
    return target.runtime != ONNXRUNTIME or node.op_type in CARRIED_PAST


def restored_by(value: ir.Value | None, target: Target) -> ir.Node | None:
    """Return the DequantizeLinear that a value comes from, past operators that move values; None if none."""
    while value is not None:
        producer = value.producer()
        if producer is None or producer.op_type == DEQUANTIZE:
            return producer
        if not _carries_pairs(producer, target):
            return None
        value = producer.inputs[0]
    return None


def quantizers_behind(value: ir.Value, target: Target) -> Iterator[ir.Node]:
    """Yield the QuantizeLinears that a value reaches, past operators that move values."""
    for reader, index in value.uses():
        if reader.op_type == QUANTIZE and index == 0:
            yield reader
        elif index == 0 and _carries_pairs(reader, target):
            yield from quantizers_behind(reader.outputs[0], target)


def float_reader(value: ir.Value, target: Target) -> str:
    """Return who reads a value as floats, in words; an empty string if nobody does."""
    if value.is_graph_output():
        return f"'{value.name}' is an output of {'its nested graph' if is_nested(value) else 'the model'}"
    for reader, index in value.uses():
        if reader.op_type == QUANTIZE and index == 0:
            continue
        if index == 0 and _carries_pairs(reader, target):
            if found := float_reader(reader.outputs[0], target):
                return found
            continue
        return f"{reader.op_type} '{reader.name}' reads '{value.name}'"
    return ""

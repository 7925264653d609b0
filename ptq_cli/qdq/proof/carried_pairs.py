"""Pairs around a value, past the operators that a runtime moves a pair over; why a kernel refuses."""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at, is_nested
from ptq_cli.models.pair_operators import DEQUANTIZE, QUANTIZE
from ptq_cli.plan.graph_questions import clamp_bounds, is_constant
from ptq_cli.plan.refusals import Rules, clamp_behind, rule_of
from ptq_cli.plan.target.rules import ONNXRUNTIME, Target
from ptq_cli.qdq.read.pair_grids import PairGrid, grid_of
from ptq_cli.qdq.read.stored_constants import is_constant_pair, stored_integers

# Operators past which ONNX Runtime 1.31 moves a lone QuantizeLinear up and a DequantizeLinear down.
CARRIED_PAST = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def _carries_pairs(node: ir.Node, target: Target) -> bool:
    """Tell whether a runtime moves a pair past an operator that moves values: ONNX Runtime not past all."""
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


def input_reason(value: ir.Value, what: str, target: Target) -> str:
    """Return why an input is not quantized as a kernel reads it, or an empty string; ``what`` names it."""
    source = restored_by(value, target)
    if source is not None:
        computed = stored_integers(source) is None and not is_constant_pair(source)
        several = "has one scale per index of an axis, and no integer kernel supports that"
        return f"its {what} '{value.name}' {several}" if computed and grid_of(source).per_axis else ""
    if is_constant(value):
        return f"its {what} '{value.name}' is a float constant"
    producer = value.producer()
    origin = f"it comes from {producer.op_type} '{producer.name}'" if producer else "it is a model input"
    return f"its {what} '{value.name}' is not quantized: {origin}"


def types_reason(node: ir.Node, indices: Sequence[int], target: Target) -> str:
    """Return why a target has no kernel for the types of a node's integers, or an empty string."""
    grids = grids_of(node, indices, target)
    for grid in grids:
        if grid.block_size:
            return "it has one scale per block, and no integer kernel supports that"
        if grid.scale is None or grid.zero_point is None:
            return "its scale is computed at run time"
        if grid.type_name not in _read_formats(target):
            # All that ONNX Runtime computes has 8 bits; of another runtime the activations tell.
            computed = "8 bits" if target.runtime == ONNXRUNTIME else target.activation.format
            return f"it reads {grid.type_name}, but target {target.name} computes {computed}"
    names = [grid.type_name for grid in grids]
    if target.runtime == ONNXRUNTIME and names[:2] == ["int8", "uint8"]:
        return "it reads int8 and uint8 in this order, and there is no integer kernel for that"
    results = [grid_of(item).type_name for item in quantizers_behind(node.outputs[0], target)]
    if names and results and results[0] != names[0]:
        return f"it reads {names[0]} and returns {results[0]}"
    return ""


def _read_formats(target: Target) -> set[str]:
    """Return the integer formats that a target's kernels read, of activations and weights."""
    if target.runtime == ONNXRUNTIME:
        return {"uint8", "int8"}
    results = {rule.result.format for rule in target.op.values() if rule.result is not None}
    return {target.activation.format, *target.activation.formats, *results, target.weight.format}


def grids_of(node: ir.Node, indices: Sequence[int], target: Target) -> list[PairGrid]:
    """Return the grids of those of a node's inputs that are quantized."""
    sources = (restored_by(input_at(node, index), target) for index in indices)
    return [grid_of(source) for source in sources if source is not None]


def output_reason(node: ir.Node, target: Target) -> str:
    """Return why a node's result is not quantized directly."""
    output = node.outputs[0]
    clamp = clamp_behind(node, Rules(target))
    if clamp is not None:
        result = clamp.outputs[0]
        for quantizer in quantizers_behind(result, target):
            if reason := cut_reason(clamp, grid_of(quantizer), target):
                return reason
        output = result
    return result_reason(output, target)


def result_reason(output: ir.Value, target: Target) -> str:
    """Return why a value is not quantized for all its readers, or an empty string."""
    reader = float_reader(output, target)
    if not any(quantizers_behind(output, target)):
        return f"its result is not quantized: {reader or 'nothing reads it'}"
    return f"its result is also read as floats: {reader}" if reader else ""


def cut_reason(clamp: ir.Node, grid: PairGrid, target: Target) -> str:
    """Return why a Relu or Clip is not redundant before a grid, or an empty string if it is.

    A bound within half a step of the grid's end clips nothing that the grid could represent.
    """
    ends = grid.ends
    # Other runtimes have kernels that include the clamp.
    if ends is None or grid.scale is None or target.runtime != ONNXRUNTIME:
        return ""
    half = float(grid.scale.reshape(-1)[0]) / 2
    low, high = clamp_bounds(clamp)
    for bound, end, beyond in (
        (low, ends[0], low is not None and ends[0] < low - half),
        (high, ends[1], high is not None and ends[1] > high + half),
    ):
        if beyond:
            return (
                f"{clamp.op_type} '{clamp.name}' is needed: it clips at {bound:.4g}, but the grid "
                f"after it reaches {end:.4g}"
            )
    return ""

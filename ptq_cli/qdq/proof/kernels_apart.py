"""Quantized graph cut at its integers, so that each kernel can be run on the integers of the file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.graph_reading import FreshNames
from ptq_cli.models.pair_operators import CLAMPS, DEQUANTIZE, QUANTIZE, dequantized_by
from ptq_cli.qdq.read.pair_grids import grid_of

# Steps of a type's grid that are one of an 8-bit grid over the same range.
STEP_OF_8_BITS = {ir.DataType.UINT8: 1, ir.DataType.INT8: 1, ir.DataType.UINT16: 257, ir.DataType.INT16: 257}
_FLOAT_ROUNDING = 2.0**-20  # of the largest summand: the order of a float32 sum, with three bits to spare


@dataclass(frozen=True, kw_only=True)
class KernelUnit:
    """Part of a graph between integers: an operator with others that may be merged into its kernel.

    Attributes:
        tensor: the integers that it makes, or an output of the model.
        node: name of the operator that computes them; empty for the quantized input of the model.
        step: difference between integers that counts as one step of 8 bits; 0 for floats.
        rounding: difference between integers that the order of float sums explains: that of a mean of values
            around their mean, whose range is only noise.
    """

    tensor: str
    node: str
    op: str
    step: int
    rounding: int = 0


@dataclass(frozen=True)
class KernelsApart:
    """A quantized graph, and the same with an ``inputs`` of its own for whatever reads a tensor of integers.

    Both have the tensors of ``units`` as outputs, in the order of the graph.
    """

    units: tuple[KernelUnit, ...]
    whole: StoredModel
    apart: StoredModel
    inputs: Mapping[str, str]


def kernels_apart(model: ir.Model) -> KernelsApart:
    """Cut a copy of a quantized model at the integers that QuantizeLinear makes of computed tensors.

    ONNX Runtime makes the same kernels of both graphs: it merges an operator with the DequantizeLinear before
    it and the QuantizeLinear behind it, and these stay together. Not cut at integers that numpy does not have
    (4 bits, 8-bit floats), and not inside nested graphs.
    """
    whole = model.clone()
    cuts = [node.outputs[0] for node in whole.graph if _makes_integers(node)]
    kept = [value for value in whole.graph.outputs if value not in cuts and _is_computed(value)]
    outputs = [*cuts, *kept]
    units = tuple(_unit(value) for value in outputs)
    for value in cuts:
        value.type = ir.TensorType(grid_of(_made_by(value)).dtype)
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
    whole.graph.outputs[:] = outputs
    stored = serialize(whole)
    names, inputs = FreshNames.of(whole.graph), {}
    for value in cuts:
        name = names.claim(f"{value.name}/given")
        given = ir.Value(name=name, type=value.type, shape=value.shape)
        for reader, index in tuple(value.uses()):
            reader.replace_input_with(index, given)
        whole.graph.inputs.append(given)
        inputs[value.name or ""] = name
    return KernelsApart(units, stored, serialize(whole), inputs)


def _is_computed(output: ir.Value) -> bool:
    # A pair at an output is not a kernel: what makes its integers is compared.
    node = output.producer()
    return node is not None and node.op_type != DEQUANTIZE


def _makes_integers(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    is_computed = source is not None and source.const_value is None
    return node.op_type == QUANTIZE and is_computed and grid_of(node).dtype in STEP_OF_8_BITS


def _made_by(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        raise ValueError(f"'{value.name}' is not computed")
    return node


def _unit(value: ir.Value) -> KernelUnit:
    node = _made_by(value)
    quantize = node if _makes_integers(node) else None
    while node.op_type in (QUANTIZE, *CLAMPS):
        source = node.inputs[0]
        producer = source.producer() if source is not None else None
        if producer is None or producer.op_type == DEQUANTIZE:
            break
        node = producer
    step = STEP_OF_8_BITS[grid_of(quantize).dtype] if quantize is not None else 0
    rounding = _rounding(node, quantize) if quantize is not None else 0
    return KernelUnit(
        tensor=value.name or "", node=node.name or "", op=node.op_type, step=step, rounding=rounding
    )


def _rounding(node: ir.Node, quantize: ir.Node) -> int:
    """Return how many steps of its result the float rounding of a node's inputs is."""
    own = grid_of(quantize).parameters
    ends = [grid_of(pair).ends or (0.0, 0.0) for pair in map(dequantized_by, node.inputs) if pair is not None]
    largest = max((abs(end) for both in ends for end in both), default=0.0)
    steps = _FLOAT_ROUNDING * largest / float(own.scale) if own is not None and own.scale > 0 else 0.0
    return int(steps) if math.isfinite(steps) else 0  # of a damaged file's scales

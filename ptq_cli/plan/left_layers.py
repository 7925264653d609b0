"""Layers that are left as they are: already quantized, in nested graphs, or in a format without a kernel."""

from collections.abc import Callable, Collection, Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.formats import FLOAT4_E2M1
from ptq_cli.models.graph_reading import constant_shape, every_node, input_at, labeled_graphs
from ptq_cli.models.pair_operators import (
    DEQUANTIZE,
    DYNAMIC_LSTM,
    FP4_BLOCK,
    QUANTIZE,
    QUANTIZING,
    dequantized_by,
    quantized_by,
)
from ptq_cli.plan.refusals import Rules
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import ONNXRUNTIME, OpRule, Target

PLAIN_FLOAT_MODEL = "pass the float model that it was made from"


def quantizing_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that quantize or dequantize, and those that do it inside."""
    found = [node for node in every_node(graph) if node.op_type in (*QUANTIZING, DYNAMIC_LSTM)]
    alone = next((node for node in found if node.op_type != DYNAMIC_LSTM and not is_paired(node)), None)
    if alone is not None:
        raise quantized_already(alone)
    return found


def quantized_already(node: ir.Node) -> NothingToQuantizeError:
    """Return the error to raise for a model that leaves nothing to quantize."""
    return NothingToQuantizeError(
        f"the model is already quantized: it has {node.op_type} '{node.name}'", hint=PLAIN_FLOAT_MODEL
    )


def is_paired(node: ir.Node) -> bool:
    """Tell whether a node is one of a pair that quantizes and dequantizes, or dequantizes a constant.

    Only this form can be kept next to new pairs: a single QuantizeLinear, or one whose range is found at run
    time, feeds integer operators that the target's rules do not cover.
    """
    source = node.inputs[0]
    if node.op_type == QUANTIZE:
        readers = [use.node for use in node.outputs[0].uses()]
        restores = (reader.op_type == DEQUANTIZE and has_parameters_of(node, reader) for reader in readers)
        return bool(readers) and all(restores)
    if node.op_type != DEQUANTIZE or source is None:
        return False
    producer = source.producer()
    return source.const_value is not None or (producer is not None and producer.op_type == QUANTIZE)


def has_parameters_of(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Tell whether a DequantizeLinear has a QuantizeLinear's scale and zero point; a missing one is 0.

    Constants are compared by their values: other tools store one constant under two names.
    """
    scales = input_at(quantize, 1), input_at(dequantize, 1)
    zeros = input_at(quantize, 2), input_at(dequantize, 2)
    if not _same(*scales) or not (_same(*zeros) or (_is_zero(zeros[0]) and _is_zero(zeros[1]))):
        return False
    known = scales[0].const_value if scales[0] is not None else None
    is_single = known is not None and known.size == 1
    return is_single or all(
        quantize.attributes.get_int(name, usual) == dequantize.attributes.get_int(name, usual)
        for name, usual in (("axis", 1), ("block_size", 0))
    )


def _same(one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.const_value is None or other.const_value is None:
        return False
    if one.const_value.dtype != other.const_value.dtype:
        return False
    # One number may be stored with an axis or without.
    return np.array_equal(one.const_value.numpy().reshape(-1), other.const_value.numpy().reshape(-1))


def _is_zero(zeros: ir.Value | None) -> bool:
    return zeros is None or (zeros.const_value is not None and not np.any(zeros.const_value.numpy()))


def dequantized_refusal(value: ir.Value) -> str:
    """Return why a value that comes from a DequantizeLinear is left alone, or an empty string."""
    node = dequantized_by(value)
    return f"already quantized: '{value.name}' comes from DequantizeLinear '{node.name}'" if node else ""


def requantized_refusal(node: ir.Node) -> str:
    """Return why an operator whose result is already quantized is left alone, or an empty string."""
    readers = quantized_by(node.outputs[0])
    return f"already quantized: QuantizeLinear '{readers[0].name}' reads its result" if readers else ""


ITERATING = ("Loop", "Scan")
CONTAINS_LAYERS = "runs the layers of its nested graph, which are listed by their own names"


def nested_refusals(graph: ir.Graph, target: Target) -> dict[str, str]:
    """Return the layers of nested graphs that stay float whatever they compute, with the reason.

    Tensors of an If, Loop or Scan are handed out of it while the model is calibrated. An operator of another
    domain has graphs whose inputs and outputs only it knows.
    """
    return _reasons(graph, lambda node, _label, _inner: _refusal(node, target))


def layers_never_run(graph: ir.Graph, never_seen: Collection[str]) -> dict[str, str]:
    """Return the layers of nested graphs that were never run, with the reason."""

    def never_ran(node: ir.Node, label: str, inner: ir.Graph) -> str:
        values = [*inner.inputs, *(value for item in inner for value in item.outputs)]
        if not any(value.name in never_seen for value in values):
            return ""
        unknown = "so the ranges of its tensors are not known"
        if node.op_type in ITERATING:
            return f"the body of {node.op_type} '{node.name}' never ran during calibration, {unknown}"
        return f"the {label} of {node.op_type} '{node.name}' was never taken during calibration, {unknown}"

    return _reasons(graph, never_ran)


def _reasons(graph: ir.Graph, reason_of: Callable[[ir.Node, str, ir.Graph], str]) -> dict[str, str]:
    """Return a reason for all layers of a nested graph that has one itself, by the layer's name."""
    found: dict[str, str] = {}
    for node in graph:
        for label, inner in labeled_graphs(node).items():
            if reason := reason_of(node, label, inner):
                found |= {item.name or "": reason for item in every_node(inner)}
            else:
                found |= _reasons(inner, reason_of)
    return found


def _refusal(node: ir.Node, target: Target) -> str:
    what = f"is inside {node.domain}{'.' if node.domain else ''}{node.op_type} '{node.name}'"
    if node.domain or node.op_type not in ("If", *ITERATING):
        return f"{what}, whose tensors cannot be measured"
    if target.runtime != ONNXRUNTIME:
        return f"{what}: how target {target.name} treats pairs in a nested graph is not known"
    if any(node.attributes.get_ints("scan_output_axes", ())):
        return f"{what}, which stacks its results along another axis than the first: they are not measured"
    return ""


def without_kernels(
    model: ir.Model, plan: Plan, target: Target, formats: Mapping[str, str]
) -> dict[str, str]:
    """Return the layers without a kernel for the format asked for by source, with the reason."""
    found = {}
    for node, rule in Rules(target).ruled(model.graph) if formats else ():
        edges = [value.name for value in (*node.inputs, *node.outputs) if value is not None and value.name]
        sources = [plan.activations[name].source for name in edges if name in plan.activations]
        asked = next((formats[source] for source in sources if source in formats), "")
        shape = constant_shape(input_at(node, rule.weight))
        reason = kernel_refusal(node.op_type, rule, target, asked, shape) if asked else ""
        if reason := reason or _blocks_refusal(node, asked, shape):
            found[node.name or ""] = reason
    return found


def _blocks_refusal(node: ir.Node, format: str, shape: tuple[int, ...]) -> str:
    """Return why a product cannot have factors in blocks of 4-bit floats, or an empty string."""
    if format != FLOAT4_E2M1.name:
        return ""
    if len(shape) != 2 or bool(node.attributes.get_int("transA", 0)):
        return f"{format} is for products of an activation with a constant matrix"
    inputs = shape[node.attributes.get_int("transB", 0)]
    return f"it has {inputs} inputs, which blocks of {FP4_BLOCK} do not divide" if inputs % FP4_BLOCK else ""


def kernel_refusal(op_type: str, rule: OpRule, target: Target, format: str, shape: tuple[int, ...]) -> str:
    """Return why an operator has no kernel for a format, or ""; a computed weight has the shape ()."""
    if rule.formats and format not in rule.formats:
        return f"target {target.name} has no {format} {op_type}"
    fewest, largest = rule.fewest_channels.get(format, 0), rule.largest_filter.get(format, 0)
    has, text = f"target {target.name} has {format} kernels for", "x".join(map(str, shape))
    if min(shape[:2], default=fewest) < fewest:
        return f"{has} {fewest} channels or more, and its weight is {text}"
    if largest and op_type in ("Conv", "ConvTranspose") and prod(shape[2:]) > largest:
        return f"{has} filters of up to {largest} values, and its weight is {text}"
    return ""

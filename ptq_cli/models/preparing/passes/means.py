"""Means and quotients that are written out become LayerNormalization, GlobalAveragePool and Div.

Source:
    Ba et al., "Layer Normalization", https://arxiv.org/abs/1607.06450, equation 3.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of, sole_reader
from ptq_cli.models.preparing.rewriting import (
    RewritePass,
    add_constant,
    array_of,
    each_node,
    is_float32,
    made_by,
    operand_beside,
    put_before,
    put_instead,
    scalar_of,
)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """A written-out normalization: ``root`` is its last node, ``x`` is normalized over its last ``sizes``."""

    root: ir.Node
    x: ir.Value
    sizes: tuple[int, ...]
    epsilon: float
    scale: Array | None = None
    bias: Array | None = None


@dataclass(frozen=True)
class _Deviation:
    """``x - mean``, where ``mean`` is a ReduceMean of x."""

    x: ir.Value
    mean: ir.Node


def _fuse(node: ir.Node, names: FreshNames) -> bool:
    """Write a spelled-out layer normalization as LayerNormalization: its variance is not quantized.

    Requires: opset 17, float32, means over the last axes, whose sizes are known; constant scale and bias.
    onnxscript's rule takes the last axis alone, and axes that are an input.
    """
    found, graph = _normalized(node), node.graph
    if found is None:
        return False
    form = _with_affine(found)
    prefix = form.root.outputs[0].name or "LayerNormalization"
    scale = form.scale if form.scale is not None else np.ones(form.sizes, np.float32)
    inputs = [form.x, add_constant(graph, scale.reshape(form.sizes), f"{prefix}.scale", names)]
    if form.bias is not None:
        inputs.append(add_constant(graph, form.bias.reshape(form.sizes), f"{prefix}.bias", names))
    attributes = [ir.AttrInt64("axis", -len(form.sizes)), ir.AttrFloat32("epsilon", form.epsilon)]
    put_instead(ir.Node("", "LayerNormalization", inputs, attributes), form.root, names)
    return True


LAYER_NORM = RewritePass(
    "layer_norm", "mean, variance and scale into LayerNormalization", each_node(_fuse, "Sqrt"), opset=17
)


def _normalized(sqrt: ir.Node) -> _Form | None:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` around its square root, without scale and bias."""
    add = made_by(sqrt.inputs[0], "Add")
    if add is None:
        return None
    for value, epsilon in (add.inputs, tuple(reversed(add.inputs))):
        number, variance = scalar_of(epsilon), made_by(value, "ReduceMean")
        deviation = _deviation(_squared(variance.inputs[0])) if variance is not None else None
        found = _divided(sqrt)
        if number is None or variance is None or deviation is None or found is None:
            continue
        root, numerator = found
        x = deviation.x
        sizes = _last_sizes(variance, x)
        same = numerator is not None and numerator.x is x and is_float32(x)
        if sizes is None or numerator is None or not same:
            continue
        if all(_last_sizes(item.mean, x) == sizes for item in (deviation, numerator)):
            return _Form(root=root, x=x, sizes=sizes, epsilon=number)
    return None


def _squared(value: ir.Value | None) -> ir.Value | None:
    node = made_by(value, "Mul", "Pow")
    if node is None:
        return None
    is_square = (
        node.inputs[0] is node.inputs[1] if node.op_type == "Mul" else scalar_of(node.inputs[1]) == 2.0
    )
    return node.inputs[0] if is_square else None


def _deviation(value: ir.Value | None) -> _Deviation | None:
    node = made_by(value, "Sub")
    mean = made_by(node.inputs[1], "ReduceMean") if node is not None else None
    x = node.inputs[0] if node is not None else None
    return _Deviation(x, mean) if x is not None and mean is not None and mean.inputs[0] is x else None


def _last_sizes(mean: ir.Node, x: ir.Value) -> tuple[int, ...] | None:
    """Return the sizes of the axes that a ReduceMean goes over, if these are the last ones and known."""
    rank = rank_of(x)
    given = array_of(input_at(mean, 1))
    axes = given.tolist() if given is not None else list(mean.attributes.get_ints("axes", ()))
    if rank is None or x.shape is None or not axes or mean.attributes.get_int("keepdims", 1) != 1:
        return None
    first = rank - len(axes)
    if sorted(axis % rank for axis in axes) != list(range(first, rank)):
        return None
    sizes = tuple(size for size in list(x.shape)[first:] if isinstance(size, int))
    return sizes if len(sizes) == len(axes) else None


def _divided(sqrt: ir.Node) -> tuple[ir.Node, _Deviation | None] | None:
    """Return the node that divides by a square root which nothing else reads, and what it divides."""
    divisor = sqrt.outputs[0]
    reader = sole_reader(divisor)
    if reader is not None and reader.op_type == "Reciprocal":
        divisor = reader.outputs[0]
        reader = sole_reader(divisor)
        if reader is None or reader.op_type != "Mul":
            return None
        return reader, _deviation(operand_beside(reader, divisor))
    if reader is None or reader.op_type != "Div" or reader.inputs[1] is not divisor:
        return None
    return reader, _deviation(reader.inputs[0])


def _with_affine(form: _Form) -> _Form:
    root, scale, bias = form.root, None, None
    node = sole_reader(root.outputs[0])
    if node is not None and node.op_type == "Mul" and (found := _over_sizes(node, root, form)) is not None:
        root, scale = node, found
        node = sole_reader(root.outputs[0])
    if node is not None and node.op_type == "Add" and (found := _over_sizes(node, root, form)) is not None:
        root, bias = node, found
    return _Form(root=root, x=form.x, sizes=form.sizes, epsilon=form.epsilon, scale=scale, bias=bias)


def _over_sizes(node: ir.Node, root: ir.Node, form: _Form) -> Array | None:
    """Return the constant beside ``root`` if it has one number for each that is normalized together."""
    array = array_of(operand_beside(node, root.outputs[0]))
    rank = rank_of(form.x)
    if array is None or rank is None or array.ndim > rank or array.dtype != np.float32:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    ones, last = shape[: rank - len(form.sizes)], shape[rank - len(form.sizes) :]
    if any(size != 1 for size in ones) or any(a not in (1, b) for a, b in zip(last, form.sizes, strict=True)):
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(last), form.sizes))


SQUARES = ("Mul", "Pow")


def _pool_mean(node: ir.Node, names: FreshNames) -> bool:
    """Write a ReduceMean over an image's height and width as GlobalAveragePool, which has an integer kernel.

    Requires: float32 with four or five axes, of which all behind the channels are averaged, and no squares,
    whose mean is a variance. Ensures: a Reshape where the axes go. PyTorch exports its pooling as a mean: a
    network's last blocks, and every gate of squeeze-and-excitation, stayed float for it.
    """
    x = node.inputs[0]
    if x is None or not is_float32(x) or not _is_spatial(node, x) or _is_square(x):
        return False
    pooling = ir.Node("", "GlobalAveragePool", [x])
    if node.attributes.get_int("keepdims", 1):
        put_instead(pooling, node, names)
    else:
        pooled = put_before(node, pooling, names)
        shape = add_constant(node.graph, np.array([0, -1], np.int64), "pooled.shape", names)
        put_instead(ir.Node("", "Reshape", [pooled, shape]), node, names)
    return True


MEAN_POOL = RewritePass(
    "mean_pool", "ReduceMean of an image into GlobalAveragePool", each_node(_pool_mean, "ReduceMean")
)


def _is_spatial(node: ir.Node, x: ir.Value) -> bool:
    rank = rank_of(x)
    given = array_of(input_at(node, 1))
    axes = given.tolist() if given is not None else list(node.attributes.get_ints("axes", ()))
    # Of three axes the last may as well be a token's features as a signal's time.
    return rank in (4, 5) and sorted(axis % rank for axis in axes) == list(range(2, rank))


def _is_square(x: ir.Value) -> bool:
    node = made_by(x, *SQUARES)
    return node is not None and (node.op_type == "Pow" or node.inputs[0] is node.inputs[1])


def _divide(node: ir.Node, names: FreshNames) -> bool:
    """Write a product with a reciprocal as a Div, by the square root of what had the power of -1/2.

    Requires: float32; the reciprocal is a Reciprocal, or a Pow to -1 or -1/2. RMS normalization and others
    are written so; targets multiply integers where they do not divide them, and the reciprocal of a variance
    in 8 bits leaves nothing of what is small.
    """
    for factor in reversed(node.inputs):
        inverse = made_by(factor, "Reciprocal", "Pow")
        other = operand_beside(node, factor) if factor is not None else None
        if inverse is None or other is None or array_of(other) is not None or not is_float32(other):
            continue
        base = inverse.inputs[0]
        power = -1.0 if inverse.op_type == "Reciprocal" else scalar_of(input_at(inverse, 1))
        if base is None or power not in (-1.0, -0.5):
            continue
        divisor = base if power == -1.0 else put_before(node, ir.Node("", "Sqrt", [base]), names)
        put_instead(ir.Node("", "Div", [other, divisor]), node, names)
        return True
    return False


RECIPROCAL = RewritePass("reciprocal", "Mul by a reciprocal into Div", each_node(_divide, "Mul"))

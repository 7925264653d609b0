"""Attention masks: an Add of a huge constant to scores, which must never be quantized.

A scale that covers -1e4 rounds all other scores to one value. (A sentence-embedding model fell from 0.82 to
0.43 Spearman because a tool quantized its mask.)
"""

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import input_at

MASKED = "reads an attention mask, whose huge constant does not fit into an 8-bit range"
SENTINEL = 1e4  # magnitudes from here on are masks: -1e4 is common in float16, -3.4e38 and -inf in float32
_SEARCH_DEPTH = 12  # operators between a mask and its Add, or an Add and whoever reads masked scores
_MOVERS = {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose"}
_MOVERS |= {"Cast", "CastLike", "Concat", "Split", "Unsqueeze"}
MASK_CARRIERS = {"Add", "Clip", "Div", "Max", "Min", "Mul", "Neg", "Not", "Pad", "Sub", "Trilu", "Where"}
MASK_CARRIERS |= _MOVERS
_SCALERS = {"Div", "Mul", "Neg"}  # a masked score times a number is still a masked score
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def adds_mask(node: ir.Node) -> bool:
    """Tell whether a node adds an attention mask to scores, or chooses between scores and a mask value.

    A mask that is computed from a model input, ``(1 - mask) * -1e4``, is found through the operators that
    pass it on, and so are ``scores - (1 - mask) * 1e4``, ``(1 - mask) / -1e-9`` and ``log(mask)``. A constant
    that is huge everywhere only shifts the scores and is not a mask; an infinite one is.
    """
    if node.op_type in _PUTS:
        return _PUTS[node.op_type](node)
    if node.op_type not in ("Add", "Sub"):
        return False
    inputs = (item for item in node.inputs if item is not None)
    # The mask itself, or a value that it is carried to.
    carried = (value for item in inputs for value in _reached(item, lambda it: it.op_type in MASK_CARRIERS))
    return any(map(_is_mask, carried))


def carries_mask(value: ir.Value) -> bool:
    """Tell whether a value holds masked scores: the result of adding the mask, also when moved or scaled."""
    producers = (item.producer() for item in _reached(value, _holds_scores_of))
    return any(producer is not None and adds_mask(producer) for producer in producers)


def _holds_scores_of(node: ir.Node) -> bool:
    if node.op_type in _MOVERS:
        return True
    constants = [item for item in node.inputs if item is not None and item.const_value is not None]
    if node.op_type == "Max":  # max(scores, the type's minimum), which some models write
        return any(_holds_sentinel(item) for item in constants)
    return node.op_type in _SCALERS and len(constants) >= len(node.inputs) - 1


def _reached(value: ir.Value, through: Callable[[ir.Node], bool]) -> Iterator[ir.Value]:
    """Yield a value and the values that such nodes compute it from, the nearest first, each once."""
    seen, level = {value}, [value]
    for _ in range(_SEARCH_DEPTH + 1):
        yield from level
        nodes = [item.producer() for item in level]
        found = [item for node in nodes if node is not None and through(node) for item in node.inputs]
        level = list(dict.fromkeys(item for item in found if item is not None and item not in seen))
        seen.update(level)


def _is_mask(value: ir.Value) -> bool:
    """Tell whether some of a value's numbers are huge, in a constant or by an operator that makes a mask."""
    if value.const_value is not None:
        array = np.asarray(value.const_value.numpy()) if _holds_sentinel(value) else None
        return array is not None and bool(array.min() != array.max() or np.isinf(array).any())
    producer = value.producer()
    return producer is not None and producer.op_type in _MAKES and _MAKES[producer.op_type](producer)


def _is_sentinel(value: ir.Value) -> bool:
    """Tell whether a value is a huge constant, including one that gets its shape at run time."""
    for item in _reached(value, lambda node: node.op_type in _MOVERS | {"Neg"}):
        if _holds_sentinel(item):
            return True
        producer = item.producer()
        if producer is not None and producer.op_type == "ConstantOfShape":
            filled = producer.attributes.get("value")
            if filled is not None and _is_huge(np.asarray(filled.as_tensor().numpy())):
                return True
    return False


def _is_of_truth(value: ir.Value) -> bool:
    """Tell whether a value is 0 or 1 in floats: a mask whose logarithm is 0 or -inf."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
    return source is not None and source.dtype == ir.DataType.BOOL


def _is_tiny(value: ir.Value) -> bool:
    constant = value.const_value
    if constant is None or constant.dtype not in _FLOATS:
        return False
    array = np.abs(np.asarray(constant.numpy(), np.float64))
    return bool(array.size) and bool(0.0 < array.max() <= 1.0 / SENTINEL)


# A table of embeddings is met on the way back from each Add of a residual stream, in each plan, and its
# numbers are copied each time that they are read: nobody changes those of a tensor.
_HUGE: WeakKeyDictionary[ir.TensorProtocol, bool] = WeakKeyDictionary()


def _holds_sentinel(value: ir.Value) -> bool:
    constant = value.const_value
    if constant is None or constant.dtype not in _FLOATS:
        return False
    if constant not in _HUGE:
        _HUGE[constant] = _is_huge(np.asarray(constant.numpy()))
    return _HUGE[constant]


def _is_huge(array: Array) -> bool:
    # Without a copy, because the constant may be an embedding table that a Gather reads.
    return bool(array.size) and bool(array.max() >= SENTINEL or array.min() <= -SENTINEL)


def _any_is(holds: Callable[[ir.Value], bool], *indices: int) -> Callable[[ir.Node], bool]:
    return lambda node: any(holds(value) for index in indices if (value := input_at(node, index)) is not None)


# Operators that put a mask value at some positions of the scores, each with the test for it.
_PUTS: dict[str, Callable[[ir.Node], bool]] = {
    "Where": _any_is(_is_sentinel, 1, 2),
    **dict.fromkeys(("Pad", "ScatterElements", "ScatterND"), _any_is(_is_sentinel, 2)),
}
# Operators that make a mask from values that are not one.
_MAKES = _PUTS | {
    **dict.fromkeys(("Mul", "Gather"), _any_is(_is_sentinel, 0, 1)),
    "Div": _any_is(_is_tiny, 1),
    "Trilu": _any_is(_is_sentinel, 0),
    "Log": _any_is(_is_of_truth, 0),
}

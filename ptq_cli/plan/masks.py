"""Attention masks: an Add of a huge constant to some scores, which must never be quantized.

A scale that covers -1e4 leaves all other scores in one step. (A sentence-embedding model fell from 0.82
to 0.43 Spearman because a tool quantized its mask.)
"""

import numpy as np
import onnx_ir as ir

SENTINEL = 1e4
"""Magnitudes from here on are masks: -1e4 is float16 practice, -3.4e38 and -inf are float32 practice."""
SEARCH_DEPTH = 12
MASK_CARRIERS = {"Add", "Cast", "Expand", "Gather", "Identity", "Mul", "Neg", "Not", "Reshape", "Slice"}
MASK_CARRIERS |= {"Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"}
MOVERS = {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose"}
MOVERS |= {"Concat", "Split", "Unsqueeze"}
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def adds_mask(node: ir.Node) -> bool:
    """Tell whether a node adds an attention mask to scores, or chooses between scores and a mask value.

    Edge case:
        A mask that is computed from a model input, ``(1 - mask) * -1e4``, is found through the operators
        that carry it, and ``scores - (1 - mask) * 1e4`` too. A constant that is huge everywhere shifts, and
        masks nothing.
    """
    if node.op_type == "Where":
        return any(_holds_sentinel(value) for value in node.inputs[1:] if value is not None)
    if node.op_type not in ("Add", "Sub"):
        return False
    return any(_is_mask(value, SEARCH_DEPTH) for value in node.inputs if value is not None)


def carries_mask(value: ir.Value, depth: int = SEARCH_DEPTH) -> bool:
    """Tell whether a value holds masked scores: what adds the mask, or what only moves that."""
    producer = value.producer()
    if producer is None:
        return False
    if adds_mask(producer):
        return True
    if depth == 0 or producer.op_type not in MOVERS:
        return False
    return any(carries_mask(item, depth - 1) for item in producer.inputs if item is not None)


def _is_mask(value: ir.Value, depth: int) -> bool:
    if value.const_value is not None:
        array = np.asarray(value.const_value.numpy())
        return _holds_sentinel(value) and bool(array.min() != array.max())
    producer = value.producer()
    if producer is None or depth == 0 or producer.op_type not in MASK_CARRIERS:
        return False
    inputs = [item for item in producer.inputs if item is not None]
    if producer.op_type not in ("Add", "Sub") and any(_holds_sentinel(item) for item in inputs):
        return True
    return any(_is_mask(item, depth - 1) for item in inputs)


def _holds_sentinel(value: ir.Value) -> bool:
    constant = value.const_value
    if constant is None or constant.dtype not in FLOATS:
        return False
    array = np.asarray(constant.numpy())
    return bool(array.size) and bool(np.max(np.abs(array)) >= SENTINEL)

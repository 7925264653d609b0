"""Tensors as ONNX Runtime's convolutions leave them, in blocks of channels.

On x86-64 its convolutions compute with the channels in blocks (NCHWc). A tapped tensor would be brought
back into the model's order, one more read and write of each element, and its range and histogram do not
depend on the order. So the tap is moved to before the operator that reorders. Only whole blocks: what
fills up an incomplete one is not a value of the tensor.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.runtime.session import Session, Written

LARGEST_BLOCK = 16
BLOCKS = (LARGEST_BLOCK, 8, 4)
_DOMAIN = "com.microsoft.nchwc"
BlockedTaps = tuple[Session, list[int]]  # and the indices of outputs in blocks


def open_tapped(model: bytes | StoredModel, threads: int) -> tuple[Session, BlockedTaps | None]:
    """Open a session on a tapped model, and if there are any tensors in blocks, one that leaves them so.

    Where ONNX Runtime's graph cannot be written or read again, there is no second session: what it could save
    is time alone. Nor is there one of a large model, whose weights each of them maps.
    """
    if isinstance(model, StoredModel) and model.is_apart:
        return Session(model, threads=threads), None
    content = model.message if isinstance(model, StoredModel) else model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        try:
            session = Session(content, threads=threads, writes=Written(path))
            graph = onnx.load(path)
        except (RuntimeFailedError, OSError, ValueError):
            return Session(model, threads=threads), None
    moved = _move(graph.graph)
    if not moved:
        return session, None
    try:
        return session, (Session(graph.SerializeToString(), threads=threads, optimize=False), moved)
    except (RuntimeFailedError, ValueError):
        return session, None


def _move(graph: onnx.GraphProto) -> list[int]:
    reorders = {node.output[0]: node for node in graph.node if _reorders_whole_blocks(node)}
    moved = [index for index, output in enumerate(graph.output) if output.name in reorders]
    before = [reorders[graph.output[index].name].input[0] for index in moved]
    if len(set(before)) < len(before):  # Two names of one tensor: an output has but one.
        return []
    gone = set()
    for index, name in zip(moved, before, strict=True):
        gone.add(graph.output[index].name)
        graph.output[index].name = name
        graph.output[index].type.tensor_type.ClearField("shape")
    read = {name for node in graph.node for name in node.input}
    kept = [node for node in graph.node if not (node.output[0] in gone and node.output[0] not in read)]
    del graph.node[:]
    graph.node.extend(kept)
    return moved


def _reorders_whole_blocks(node: onnx.NodeProto) -> bool:
    if node.op_type != "ReorderOutput" or node.domain != _DOMAIN:
        return False
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return not attributes.get("channels_last", 0) and attributes.get("channels", 1) % LARGEST_BLOCK == 0


def block_of(blocked: Array, plain: Array) -> int | None:
    """Return how many channels a block has, given a tensor in blocks and in order; None if it has none.

    Shapes:
        blocked, plain: (N, C, H, W), of which the first is so only by name.
    """
    if blocked.shape != plain.shape or blocked.ndim != 4:
        return None
    return next((block for block in BLOCKS if _same(unblock(blocked, block), plain)), None)


def unblock(blocked: Array, block: int) -> Array:
    """Return a tensor in the model's order.

    Shapes:
        blocked, result: (N, C, H, W).
    """
    return channel_view(blocked, block).reshape(blocked.shape)


def channel_view(blocked: Array, block: int) -> Array:
    """Return a view of a tensor with two axes of channels: those of blocks, and those in a block.

    Shapes:
        blocked: (N, C, H, W); the result (N, C / block, block, H, W).
    """
    samples, channels, height, width = blocked.shape
    return blocked.reshape(samples, channels // block, height, width, block).transpose(0, 1, 4, 2, 3)


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one.view(np.uint32), np.ascontiguousarray(other).view(np.uint32)))

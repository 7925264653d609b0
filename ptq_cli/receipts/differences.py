"""Where two quantized files differ: constants, nodes, metadata, and what else a graph says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Annotated, Literal

import ml_dtypes  # noqa: F401 - gives numpy the types of 4 bits and of small floats
import numpy as np
import onnx_ir as ir

from ptq_cli.core.words import few
from ptq_cli.models.files.stored import StoredModel, constants_of
from ptq_cli.models.graph_reading import every_node

_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A part of a file that is not as it should be."""

    kind: Annotated[
        Literal["constant", "node", "metadata", "graph", "bytes"], "What it is a part of the file as."
    ]
    name: Annotated[str, "Its name; empty for the graph and the bytes."]
    text: Annotated[str, "How it differs."]


def file_differences(found: StoredModel, made: StoredModel) -> Iterator[FileDifference]:
    """Yield how a file differs from the one that was made: constants first, each in the file's order.

    Edge case: Files that say the same in other bytes differ in these alone.
    """
    one, other = found.load(), made.load()
    differs = False
    for item in _parts(one, other):
        differs = True
        yield item
    if not differs:
        yield _bytes(found, made)


def _parts(one: ir.Model, other: ir.Model) -> Iterator[FileDifference]:
    yield from _constants(one, other)
    yield from _nodes(one, other)
    yield from _texts("metadata", one.metadata_props, other.metadata_props)
    yield from _texts("graph", _said(one), _said(other))


def _constants(one: ir.Model, other: ir.Model) -> Iterator[FileDifference]:
    first, second = ({value.name or "": value for value in constants_of(model)} for model in (one, other))
    for name, value in first.items():
        if name not in second:
            yield FileDifference(kind="constant", name=name, text="was added")
        elif text := _tensor(value.const_value, second[name].const_value):
            yield FileDifference(kind="constant", name=name, text=text)
    for name in second:
        if name not in first:
            yield FileDifference(kind="constant", name=name, text="is missing")


def _tensor(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> str:
    """How a constant differs; empty if it does not."""
    if one is None or other is None:
        return "" if one is other else "has no value in one of the files"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"is {_shape(one)}, expected {_shape(other)}"
    if one.tobytes() == other.tobytes():
        return ""
    found, wanted = np.atleast_1d(one.numpy()), np.atleast_1d(other.numpy())
    width = found.dtype.itemsize
    same = found.view(f"V{width}") == wanted.view(f"V{width}")
    places = np.argwhere(~same)
    if not len(places):
        return "has other padding"
    at = tuple(map(int, places[0]))
    where = f" at {list(at)}" if one.shape.rank() else ""
    said = f"{len(places):,} of {found.size:,} values differ, the first{where} is" if found.size > 1 else "is"
    return f"{said} {_value(found[at])}, expected {_value(wanted[at])}"


def _value(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


def _shape(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}"


def _nodes(one: ir.Model, other: ir.Model) -> Iterator[FileDifference]:
    first, second = _by_name(one), _by_name(other)
    for key, node in first.items():
        if key not in second:
            yield FileDifference(kind="node", name=key, text=f"was added ({node.op_type})")
        elif said := _changes(node, second[key]):
            yield FileDifference(kind="node", name=key, text=said)
    for key, node in second.items():
        if key not in first:
            yield FileDifference(kind="node", name=key, text=f"is missing ({node.op_type})")
    if list(first) != list(second) and first.keys() == second.keys():
        yield FileDifference(kind="graph", name="", text="its nodes are in another order")


def _by_name(model: ir.Model) -> dict[str, ir.Node]:
    """The nodes by name, or by what they make; a further one of a name, which ONNX allows, has a number."""
    found: dict[str, ir.Node] = {}
    for node in every_node(model.graph):
        name = node.name or next((value.name or "" for value in node.outputs), "")
        numbers = (f"{name} ({number})" for number in count(2))
        found[next(key for key in chain([name], numbers) if key not in found)] = node
    return found


def _changes(one: ir.Node, other: ir.Node) -> str:
    """What differs of a node of the same name; empty if nothing does."""
    if one.op_identifier() != other.op_identifier():
        return f"is a {one.op_type}, expected {other.op_type}"
    for what in ("inputs", "outputs"):
        names = [[value.name if value else "" for value in getattr(node, what)] for node in (one, other)]
        if names[0] != names[1]:
            found, wanted = (few([name or "" for name in each], _MOST_NAMES) for each in names)
            return f"its {what} are {found}, expected {wanted}"
    protos = [
        {item.name: item.SerializeToString(deterministic=True) for item in ir.to_proto(node).attribute}
        for node in (one, other)
    ]
    changed = [name for name in (protos[0] | protos[1]) if protos[0].get(name) != protos[1].get(name)]
    return f"has another {few(changed, _MOST_NAMES)}" if changed else ""


def _texts(
    kind: Literal["metadata", "graph"], one: Mapping[str, str], other: Mapping[str, str]
) -> Iterator[FileDifference]:
    for name in [*one, *(name for name in other if name not in one)]:
        found, wanted = one.get(name), other.get(name)
        if found != wanted:
            text = f"is {_shown(found)}, expected {_shown(wanted)}"
            yield FileDifference(kind=kind, name=name, text=text)


_LONGEST = 60


def _shown(text: str | None) -> str:
    if text is None:
        return "missing"
    return f"'{text}'" if len(text) <= _LONGEST else f"'{text[:_LONGEST]}…'"


def _said(model: ir.Model) -> dict[str, str]:
    """What a file says besides nodes, constants and metadata."""
    graph = model.graph
    return {
        "opset": str(dict(model.opset_imports)),
        "IR version": str(model.ir_version),
        "producer": f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        "name": graph.name or "",
        "inputs": ", ".join(map(_described, graph.inputs)),
        "outputs": ", ".join(map(_described, graph.outputs)),
        "functions": ", ".join(sorted(":".join(key) for key in model.functions)),
    }


def _described(value: ir.Value) -> str:
    return f"{value.name} {value.type} {value.shape}"


def _bytes(found: StoredModel, made: StoredModel) -> FileDifference:
    one, other = found.message, made.message
    if one == other:
        return FileDifference(kind="bytes", name="", text="the file of its constants has other bytes")
    shorter = min(len(one), len(other))
    both = np.frombuffer(one, np.uint8, shorter) != np.frombuffer(other, np.uint8, shorter)
    first = int(np.argmax(both)) if both.any() else shorter
    return FileDifference(
        kind="bytes",
        name="",
        text=f"nodes, constants and metadata are equal, and bytes differ from {first:,} on",
    )

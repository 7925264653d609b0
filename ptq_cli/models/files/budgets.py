"""Work and memory that a small file can ask for without end: nested functions, loops, huge sizes.

The inference of a Slice aborts on a negative size, in ONNX Runtime too.

A Split of a negative part makes one, a Pad that cuts off more than there is, a kernel larger than its input.
So sizes are inferred node by node before anything infers a whole graph, and such a file is refused.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx import helper

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.shapes import LARGE

MOST_NODES = 250_000  # after inlining, a millisecond each; large exports have some 10,000
_MOST_STEPS = 10_000_000  # of endless loops, nested ones multiplied: minutes of an empty loop
_Key = tuple[str, str, str]


def require_inlinable(proto: onnx.ModelProto, what: str) -> None:
    """Check that the functions of a model end, and make no more than ``MOST_NODES`` nodes in place of calls.

    ONNX's own checker and shape inference follow each call, so this is asked before them.
    """
    bodies = {_key(item): Counter(map(_called, _nodes(item.node))) for item in proto.functions}
    sizes: dict[_Key, int] = {}
    for key in bodies:
        _measure(key, bodies, sizes, what)
    count = sum(sizes.get(_called(node), 1) for node in _nodes(proto.graph.node)) if bodies else 0
    if count > MOST_NODES:
        raise InvalidOnnxError(
            f"the functions of model '{what}' would make {_about(count)} nodes, more than {MOST_NODES:,}",
            hint="export it without functions that call each other, or divide it",
        )


def _measure(start: _Key, bodies: dict[_Key, Counter[_Key]], sizes: dict[_Key, int], what: str) -> None:
    waiting, opened = [start], set[_Key]()
    while waiting:
        key = waiting[-1]
        missing = [name for name in bodies[key] if name in bodies and name not in sizes]
        if key in sizes or not missing:
            waiting.pop()
            sizes[key] = sum(sizes.get(name, 1) * times for name, times in bodies[key].items())
        elif key in opened:
            raise InvalidOnnxError(
                f"the function '{key[1]}' of model '{what}' calls itself", hint="export it again"
            )
        else:
            opened.add(key)
            waiting += missing


def _about(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than 10^12"


def _key(function: onnx.FunctionProto) -> _Key:
    return function.domain, function.name, getattr(function, "overload", "")


def _called(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, getattr(node, "overload", "")


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def require_possible_steps(graph: ir.Graph, what: str, outside: int = 1) -> None:
    """Check that no Loop, times those around it, must take more than ``_MOST_STEPS`` steps.

    One whose condition is computed may end early, and has often a number of steps that means "no limit".
    """
    for node in graph:
        steps = outside * _certain_steps(node)
        if steps > _MOST_STEPS:
            raise InvalidOnnxError(
                f"the loop '{node.name or node.op_type}' of '{what}' takes {_about(steps)} steps, more than "
                f"{_MOST_STEPS:,}",
                hint="export the model with fewer steps",
            )
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                require_possible_steps(attribute.as_graph(), what, steps)


def _certain_steps(node: ir.Node) -> int:
    """Return how many steps a node takes of the graph in it, at least: 1, if data decide."""
    if node.op_type != "Loop" or node.domain or len(node.inputs) < 2:
        return 1
    most, first = (ir.convenience.get_const_tensor(item) if item else None for item in node.inputs[:2])
    body = node.attributes["body"].as_graph()
    goes_on: ir.Value | None = body.outputs[0]
    while goes_on is not None and (made := goes_on.producer()) is not None and made.op_type == "Identity":
        goes_on = made.inputs[0]
    tensor = ir.convenience.get_const_tensor(goes_on) if goes_on is not None else None
    is_endless = goes_on is body.inputs[1] or (tensor is not None and bool(tensor.numpy().all()))
    starts = node.inputs[1] is None or (first is not None and bool(first.numpy().all()))
    return max(1, int(most.numpy().reshape(-1)[0])) if most is not None and is_endless and starts else 1


Types = dict[str, onnx.TypeProto]
Constants = dict[str, onnx.TensorProto]
MOST_ELEMENTS = 1 << 38  # of a node's result: a terabyte of float32
LONGEST_VECTOR = 1 << 26  # elements; ONNX's inference keeps 140 bytes for each of a vector
CANNOT_RUN = "no input fits it: check the sizes of its inputs, or export it again"


def require_possible_sizes(proto: onnx.ModelProto, what: str) -> None:
    """Check that no size which follows from inputs and constants is negative, or too large for any machine.

    What depends on a size that is not known is not inferred, and neither is a function of the model.
    """
    versions = {item.domain: item.version for item in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    _walk(proto.graph, {}, {}, opset, what)


def require_possible_values(values: Iterable[ir.Value], what: str) -> None:
    """Check the same of values that were inferred."""
    for value in values:
        node = value.producer()
        if node is not None and value.shape is not None:
            sizes = [size if isinstance(size, int) else 0 for size in value.shape]
            _require_size(sizes, what, node.name or node.op_type, node.op_type)


def _walk(graph: onnx.GraphProto, types: Types, constants: Constants, opset: int, what: str) -> None:
    types, constants = dict(types), dict(constants)
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        _keep(constants, tensor.name, tensor)
    for info in graph.input:
        types.setdefault(info.name, _with_any_for_negative(info.type))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _walk(attribute.g, types, constants, opset, what)
            if node.op_type == "Constant" and attribute.name == "value" and attribute.HasField("t"):
                _keep(constants, node.output[0], attribute.t)
        _require_channels(node, types, what)
        found = _inferred(node, types, constants, opset)
        for name, kind in found.items():
            sizes = [size.dim_value for size in kind.tensor_type.shape.dim]
            _require_size(sizes, what, node.name or name, node.op_type)
        types.update(found)


def _require_channels(node: onnx.NodeProto, types: Types, what: str) -> None:
    if node.op_type not in ("Conv", "ConvTranspose") or len(node.input) < 2 or node.input[1] not in types:
        return
    weight = types[node.input[1]].tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in weight.shape.dim]
    if 0 in sizes:
        raise InvalidOnnxError(
            f"'{what}' cannot be computed: the weight '{node.input[1]}' of '{node.name or node.output[0]}' "
            f"({node.op_type}) has the shape {sizes}, and so no elements",
            hint="check that pruning left channels in this layer, or export it again",
        )


def _inferred(
    node: onnx.NodeProto, types: Types, constants: Constants, opset: int
) -> Mapping[str, onnx.TypeProto]:
    known = {name: types[name] for name in node.input if name in types}
    if node.domain not in ("", "ai.onnx") or len(known) < len({name for name in node.input if name}):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
        data = {name: constants[name] for name in node.input if name in constants}
        found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, node, known, data
        )
    # It is C++ and raises what its parts raise; the checker says what is wrong with the node.
    except Exception:  # noqa: BLE001
        return {}
    return found


def _keep(constants: Constants, name: str, tensor: onnx.TensorProto) -> None:
    is_inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    size = 1
    for dimension in tensor.dims:
        size *= dimension
    if is_inside and 0 <= size <= LARGE:
        constants[name] = tensor


def _with_any_for_negative(kind: onnx.TypeProto) -> onnx.TypeProto:
    copy = onnx.TypeProto()
    copy.CopyFrom(kind)
    for size in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
        if size.dim_value < 0:
            size.ClearField("dim_value")
    return copy


def _require_size(sizes: Sequence[int], what: str, name: str, op_type: str) -> None:
    """Refuse the sizes of a result, 0 for an unknown one, that it cannot have."""
    result = f"'{what}' cannot be computed: the result of '{name}' ({op_type}) would have"
    for axis, size in enumerate(sizes):
        if size < 0:
            raise InvalidOnnxError(f"{result} a size of {size} on axis {axis}", hint=CANNOT_RUN)
    elements = math.prod(sizes)
    if elements > (LONGEST_VECTOR if len(sizes) == 1 else MOST_ELEMENTS):
        raise InvalidOnnxError(
            f"{result} {elements:,} elements", hint="check the sizes it is made of, or export it again"
        )

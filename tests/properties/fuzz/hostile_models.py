"""ONNX models that are messages as they should be, and say what no exporter writes."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.properties.fuzz.hostile_texts import HOSTILE, places, replaced

Random = np.random.Generator
LOCATIONS = ("../../secret", "/etc/passwd", "\0", "", ".", "data.npz", "missing.bin", "/dev/zero", "w" * 5000)
AMOUNTS = ("-1", "0", "9" * 30, "abc", "", "1e3", str(2**40))
DEPTHS = (2, 10, 20, 60, 99, 150, 400)
LENGTH = 3000  # Nodes in a row


def fuzzed_model(model: onnx.ModelProto, random: Random) -> bytes:
    """Return the file with wrong bits, with a hostile string, or with what no exporter writes."""
    kind = random.integers(0, 3)
    if kind == 0:
        return damaged(model, random)
    edited = onnx.ModelProto()
    edited.CopyFrom(model)
    if kind == 1:
        return with_hostile_string(edited, random)
    if random.random() < 0.05:
        return nested(edited, _one(DEPTHS, random))
    for _ in range(int(random.integers(1, 3))):
        if not edited.graph.node:
            break  # The edit before left nothing to damage.
        EDITS[int(random.integers(0, len(EDITS)))](edited, random)
    return edited.SerializeToString()


def nested(model: onnx.ModelProto, depth: int) -> bytes:
    """Return the file with branches in branches: protobuf itself writes less than 50 levels."""
    model.graph.initializer.append(helper.make_tensor("flag", TensorProto.BOOL, [], [True]))
    graph = helper.make_node("Constant", [], ["v"], value_float=1.0).SerializeToString()
    graph = _field(1, graph) + _field(12, _field(1, b"v"))
    for _ in range(depth):
        branches = [
            _field(5, _field(1, name) + _field(6, graph) + b"\xa0\x01\x05")
            for name in (b"then_branch", b"else_branch")
        ]
        branches = branches[:1] if depth > 12 else branches  # Two of each would be 2 ** depth.
        node = _field(1, b"flag") + _field(2, b"v") + _field(4, b"If") + b"".join(branches)
        graph = _field(1, node) + _field(12, _field(1, b"v"))
    # A field that comes twice is merged.
    return model.SerializeToString() + _field(7, _field(1, node))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf's wire format: its number, its length, its content."""
    length, varint = len(content), bytearray()
    while length > 127:
        varint.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *varint, length]) + content


def with_hostile_string(model: onnx.ModelProto, random: Random) -> bytes:
    """Return the file with one of its strings, in all places that have it or in one, replaced."""
    found = list(places(model))
    hostile = list(HOSTILE.values())[int(random.integers(0, len(HOSTILE)))]
    if random.random() < 0.02:
        hostile = b"n" * 1_000_000
    _, put = found[int(random.integers(0, len(found)))]
    return replaced(model, put, hostile)


def _node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto:
    return model.graph.node[int(random.integers(0, len(model.graph.node)))]


def _number(random: Random) -> int:
    return int(NUMBERS[int(random.integers(0, len(NUMBERS)))])


def _one(items, random: Random):
    return items[int(random.integers(0, len(items)))] if len(items) else None


def _cycle(model: onnx.ModelProto, random: Random) -> None:
    node, later = _node(model, random), _node(model, random)
    if node.input and later.output:
        node.input[0] = later.output[0]


def _without_inputs(model: onnx.ModelProto, random: Random) -> None:
    part = _one(("input", "output", "initializer", "node", "value_info"), random)
    items = getattr(model.graph, part)
    del items[int(random.integers(0, max(1, len(items)))) :]


def _twice(model: onnx.ModelProto, random: Random) -> None:
    items = getattr(model.graph, _one(("input", "output", "initializer", "node", "value_info"), random))
    if found := _one(items, random):
        items.add().CopyFrom(found)


def _same_names(model: onnx.ModelProto, random: Random) -> None:
    for node in model.graph.node:
        node.name = "same"
    if random.random() < 0.5:
        node, other = _node(model, random), _node(model, random)
        node.output[0] = other.output[0]


def _size_of_value(model: onnx.ModelProto, random: Random) -> None:
    infos = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    tensor = _one(infos, random).type.tensor_type if infos else None
    if tensor is None:
        return
    if dim := _one(tensor.shape.dim, random):
        dim.dim_value = _number(random)
    if random.random() < 0.3:
        tensor.shape.dim.add().dim_value = _number(random)
    if random.random() < 0.3:
        tensor.elem_type = int(random.integers(-1, 30))
    if random.random() < 0.1:
        tensor.ClearField("shape")


def _size_of_constant(model: onnx.ModelProto, random: Random) -> None:
    if tensor := _one(model.graph.initializer, random):
        tensor.dims[:] = [_number(random) for _ in range(int(random.integers(0, 4)))]


def _other_type(model: onnx.ModelProto, random: Random) -> None:
    info = _one([*model.graph.input, *model.graph.output], random)
    if info is None:
        return
    kind = random.integers(0, 4)
    info.type.Clear()
    if kind == 0:
        info.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind == 1:
        info.type.map_type.key_type = TensorProto.INT64
    elif kind == 2:
        info.type.optional_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


def _outside(model: onnx.ModelProto, random: Random) -> None:
    tensor = _one(model.graph.initializer, random)
    if tensor is None:
        return
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, values in (("location", LOCATIONS), ("offset", AMOUNTS), ("length", AMOUNTS)):
        if random.random() < 0.8:
            tensor.external_data.add(key=key, value=_one(values, random))


def _constant_content(model: onnx.ModelProto, random: Random) -> None:
    tensor = _one(model.graph.initializer, random)
    if tensor is None:
        return
    match random.integers(0, 5):
        case 0:
            tensor.float_data.extend([1.0] * 7)
        case 1:
            tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
        case 2:
            tensor.data_type = TensorProto.STRING
            tensor.ClearField("raw_data")
            tensor.string_data.extend([b"\xff", b"\0"])
        case 3:
            tensor.segment.begin, tensor.segment.end = 0, _number(random)
        case _:
            count = len(tensor.raw_data) // 4
            tensor.raw_data = np.full(
                count, _one((np.nan, np.inf, -np.inf, 3e38, 1e-40), random), "<f4"
            ).tobytes()


def _long(model: onnx.ModelProto, random: Random) -> None:
    """A long row of nodes behind the first output."""
    last = model.graph.output[0].name if model.graph.output else "x"
    op = _one(("Identity", "Relu", "Transpose", "Neg"), random)
    for index in range(LENGTH):
        model.graph.node.append(helper.make_node(op, [last], [f"row{index}"], f"row{index}"))
        last = f"row{index}"
    for output in model.graph.output:
        output.name = last


def _function(model: onnx.ModelProto, random: Random) -> None:
    """A function of the file that calls itself, or that nothing defines."""
    node = _node(model, random)
    node.domain, node.op_type = "own", "Call"
    model.opset_import.add(domain="own", version=_one((1, 0, -1, 2**40), random))
    if random.random() < 0.7:
        body = [helper.make_node("Call", ["a"], ["b"], domain="own")]
        if random.random() < 0.3:
            body = [helper.make_node("Neg", ["a"], ["b"])]
        opsets = [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)]
        model.functions.append(helper.make_function("own", "Call", ["a"], ["b"], body, opsets))


def _attribute(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    attribute = node.attribute.add(
        name=_one(("value", "axis", "to", "body", "perm", "pads", "group"), random)
    )
    match random.integers(0, 6):
        case 0:
            attribute.type, attribute.i = onnx.AttributeProto.INT, _number(random)
        case 1:
            attribute.type, attribute.f = onnx.AttributeProto.FLOAT, float("nan")
        case 2:
            attribute.type = onnx.AttributeProto.GRAPH
        case 3:
            attribute.type = onnx.AttributeProto.INTS
            attribute.ints.extend([_number(random) for _ in range(3)])
        case 4:
            attribute.ref_attr_name = "gone"
        case _:
            attribute.type = onnx.AttributeProto.TENSOR
            attribute.t.dims.extend([_number(random)])
            attribute.t.data_type = int(random.integers(0, 24))


def _opsets(model: onnx.ModelProto, random: Random) -> None:
    match random.integers(0, 4):
        case 0:
            del model.opset_import[:]
        case 1:
            model.opset_import.add(domain="", version=_number(random))
        case 2:
            model.ir_version = _number(random)
        case _:
            # An earlier edit may have cleared them.
            opset = model.opset_import[0] if model.opset_import else model.opset_import.add()
            opset.version = int(random.integers(1, 30))


def _huge_result(model: onnx.ModelProto, random: Random) -> None:
    """Nodes whose results are far larger than the file."""
    sizes = _one(([2**20, 2**20], [2**62], [-1, 2**31], [16_384, 4_096]), random)
    shape = helper.make_tensor("huge.shape", TensorProto.INT64, [len(sizes)], sizes)
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("ConstantOfShape", ["huge.shape"], ["huge"]))
    if random.random() < 0.5 and model.graph.output:
        model.graph.output[0].name = "huge"


def _more(model: onnx.ModelProto, random: Random) -> None:
    match random.integers(0, 4):
        case 0:
            model.training_info.add().algorithm.name = "train"
        case 1:
            sparse = model.graph.sparse_initializer.add()
            sparse.dims.extend([_number(random), 2])
        case 2:
            note = model.graph.quantization_annotation.add(tensor_name="x")
            note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="gone")
        case _:
            model.metadata_props.add(key="ptq.target", value=_one(LOCATIONS, random))


EDITS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    _cycle,
    _without_inputs,
    _twice,
    _same_names,
    _size_of_value,
    _size_of_constant,
    _other_type,
    _outside,
    _constant_content,
    _long,
    _function,
    _attribute,
    _opsets,
    _huge_result,
    _more,
)


NUMBERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 7, 64, 2**31 - 1, 2**40, 2**63 - 1)
TYPES = range(24)


def damaged(model: onnx.ModelProto, random: np.random.Generator) -> bytes:
    """Return a file with bits turned over, cut short, a stretch gone or zero, or with another content."""
    kind = random.integers(0, 10)
    if kind >= 5:
        edited = onnx.ModelProto()
        edited.CopyFrom(model)
        for _ in range(random.integers(1, 3)):
            _edit(edited, random)
        return edited.SerializeToString()
    data = bytearray(model.SerializeToString())
    start = int(random.integers(0, len(data)))
    if kind == 4:
        return bytes(data[:start])
    if kind == 3:
        length = int(random.integers(1, 64))
        data[start : start + length] = b"" if random.random() < 0.5 else bytes(length)
        return bytes(data)
    for place in random.integers(0, len(data), 1 + 3 * (kind == 2)):
        data[place] ^= 1 << int(random.integers(0, 8))
    return bytes(data)


def _edit(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Change one thing that the file says, still a message that can be read."""
    graph = model.graph
    node, other = (graph.node[int(random.integers(0, len(graph.node)))] for _ in range(2))
    number = int(random.choice(np.array(NUMBERS, object)))
    match random.integers(0, 10):
        case 0:
            node.op_type = other.op_type
        case 1 if node.input:
            node.input[int(random.integers(0, len(node.input)))] = str(
                random.choice([*other.output, "", "gone"])
            )
        case 2 if node.attribute:
            _edit_attribute(node.attribute[int(random.integers(0, len(node.attribute)))], number, random)
        case 3 if graph.initializer:
            tensor = graph.initializer[int(random.integers(0, len(graph.initializer)))]
            tensor.dims.append(number) if random.random() < 0.5 else tensor.ClearField("dims")
        case 4 if graph.initializer:
            graph.initializer[int(random.integers(0, len(graph.initializer)))].data_type = int(
                random.choice(TYPES)
            )
        case 5 if graph.initializer:
            tensor = graph.initializer[int(random.integers(0, len(graph.initializer)))]
            values = np.frombuffer(tensor.raw_data, np.uint8).copy()
            values[:] = random.choice([0, 255, 127])
            tensor.raw_data = values.tobytes()
        case 6:
            model.opset_import[0].version = number % 30
        case 7:
            dims = graph.input[0].type.tensor_type.shape.dim
            dims[int(random.integers(0, len(dims)))].dim_value = number
        case 8:
            del graph.node[int(random.integers(0, len(graph.node)))]
        case _:
            graph.output[0].name = other.output[0] if random.random() < 0.5 else "nobody"


def _edit_attribute(attribute: onnx.AttributeProto, number: int, random: np.random.Generator) -> None:
    if attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        attribute.ints[int(random.integers(0, len(attribute.ints)))] = number
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = b"\xff\xfe" if random.random() < 0.5 else b"other"
    else:
        attribute.i, attribute.type = number, onnx.AttributeProto.INT

"""ONNX files with wrong bits, cut short, or with another content than anybody would write."""

import numpy as np
import onnx

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

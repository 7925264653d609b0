"""Damage ONNX files, their bytes or what the bytes say, and quantize each: a process, which may die of one.

python -m tests.properties.damaged_models FOLDER FIRST LAST

It prints a line for each file: its seed, and what came of it, ``quantized`` or the error's code. Whatever is
no ``PtqError`` ends the process with its traceback, and the seed is the last that was printed.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import ptq_cli
from ptq_cli.core.errors import PtqError
from tests.properties.random_graphs import BATCH, random_model
from tests.properties.random_steps import STEPS
from tests.unit.plan.graphs import sample

SOURCES = 10
"""Models that are damaged, of 2 to 20 operators."""
SAMPLES = 4
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


def outcome(folder: Path, content: bytes) -> str:
    """Quantize a file, and return ``quantized`` or the code of the error."""
    path = folder / "damaged.onnx"
    path.write_bytes(content)
    try:
        ptq_cli.quantize(path, run=folder / "run", data=str(folder / "data.npz"), batch_size=BATCH)
    except PtqError as error:
        return error.code if error.message and error.hint else f"{error.code} without words"
    return "quantized"


def main(folder: Path, first: int, last: int) -> None:
    """Damage and quantize files of these seeds."""
    for seed in range(first, last):
        print(seed, end=" ", flush=True)
        model = random_model(seed % SOURCES, 2 * (1 + seed % SOURCES), STEPS)
        batches = [sample(ir.from_proto(model), index, BATCH) for index in range(SAMPLES // BATCH)]
        arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        np.savez(folder / "data.npz", **arrays)
        print(outcome(folder, damaged(model, np.random.default_rng(seed))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""Models whose weights lie in a file of their own, written one by one: one of any size can be made."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def write_large(path: Path, *, width: int, layers: int) -> int:
    """Write a chain of square layers with external data, and return how many bytes its files have.

    All layers have one block of random weights, which differ in a few numbers only. Every third weight goes
    through a Transpose, as PyTorch's exporters write it; the first two layers share theirs.
    """
    random = np.random.default_rng(0)
    size = (1.5 / width) ** 0.5
    block = (random.standard_normal((width, width)) * size).astype(np.float32)
    nodes, constants, value = [], [], "x"
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as stream:
        for index in range(layers):
            weight = f"layer.{index}.weight"
            constants.append(_outside(weight, block.shape, data.name, stream.tell()))
            block[0, :8] = random.standard_normal(8) * size
            stream.write(block.data)
            if index % 3 == 2:
                nodes.append(helper.make_node("Transpose", [weight], [f"{weight}.T"], perm=[1, 0]))
                weight = f"{weight}.T"
            for reader in (weight,) * (1 + (index == 0)):
                name = f"layer.{index}" + ("" if reader == weight and index else f".{len(nodes)}")
                bias = random.standard_normal(width).astype(np.float32) * 0.1
                constants.append(numpy_helper.from_array(bias, f"{name}.bias"))
                nodes.append(helper.make_node("MatMul", [value, reader], [f"{name}.product"], name))
                nodes.append(helper.make_node("Add", [f"{name}.product", f"{name}.bias"], [f"{name}.sum"]))
                nodes.append(helper.make_node("Relu", [f"{name}.sum"], [f"{name}.relu"]))
                value = f"{name}.relu"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    ends = [helper.make_tensor_value_info(name, FLOAT, ["n", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path.stat().st_size + data.stat().st_size


def _outside(name: str, shape: tuple[int, ...], location: str, offset: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    length = 4 * int(np.prod(shape))
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor

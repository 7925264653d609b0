"""Noise to run a model on, small models and their files, and what is in a graph."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from tests.graphs import parsed


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def names(model: ir.Model) -> list[str]:
    return [node.name or "" for node in model.graph]


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


WEIGHTED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,64] x) => (float[N,64] y)
    <float[64,64] w, float[64] b = {BIAS}> { h = MatMul(x, w)\n y = Add(h, b) }"""


def weighted() -> ir.Model:
    """A product with a weight of 16 KB and a bias."""
    return ir.from_proto(parsed(WEIGHTED.replace("BIAS", ", ".join(["0.5"] * 64)), {"w": noise(64, 64)}))


def linear(opset: int = 20, weight: np.ndarray | None = None) -> onnx.ModelProto:
    """One product."""
    matrix = noise(4, 300) if weight is None else weight
    return parsed("(float[n,4] x) => (float[n,300] y) { y = MatMul(x, w) }", {"w": matrix}, opset=opset)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def external(folder: Path, location: str = "weights.bin") -> Path:
    """A model whose weight lies in ``location``, which is there."""
    model = linear()
    tensor = model.graph.initializer[0]
    folder.mkdir(exist_ok=True)
    if not Path(location).is_absolute() and location:
        (folder / location).write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    return saved(model, folder / "model.onnx")

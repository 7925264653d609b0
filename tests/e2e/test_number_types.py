"""Models and data in float16, bfloat16, float64 and integers: the whole job, or a refusal with its reason."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.collectors.calibration_file import load_calibration

Nodes = list[onnx.NodeProto]
FLOAT, HALF, DOUBLE, BFLOAT = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.BFLOAT16,
)
RANDOM = np.random.default_rng(11)
X = RANDOM.normal(size=(12, 3, 8, 8))
NUMPY = {FLOAT: np.float32, HALF: np.float16, DOUBLE: np.float64}


def build(nodes: Nodes, inputs: dict[str, tuple[int, Sequence[Any]]], output: int, opset: int = 20) -> Any:
    """A model with the constants that its nodes name as ``NAME:TYPE``, with output ``y``."""
    shapes = {"conv": (8, 3, 3, 3), "conv2": (8, 8, 3, 3), "fc": (5, 8), "table": (16, 8)}
    constants = {}
    for node in nodes:
        for name in node.input:
            kind, _, dtype = name.partition(":")
            if dtype and name not in constants:
                values = numpy_helper.from_array(RANDOM.normal(size=shapes[kind]).astype(np.float32), name)
                constants[name] = helper.make_tensor(
                    name, int(dtype), shapes[kind], numpy_helper.to_array(values).ravel()
                )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "numbers",
        [value(name, *spec) for name, spec in inputs.items()],
        [value("y", output, ["n", 5])],
        list(constants.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def chain(*steps: tuple[str, dict[str, Any]], start: str = "x") -> Nodes:
    """One operator after the other; each reads the last one's result, and its constants."""
    nodes, last = [], start
    for number, (words, attributes) in enumerate(steps):
        operator, *constants = words.split()
        result = "y" if number == len(steps) - 1 else f"t{number}"
        nodes.append(helper.make_node(operator, [last, *constants], [result], f"n{number}", **attributes))
        last = result
    return nodes


POOL = [("GlobalAveragePool", {}), ("Flatten", {})]
IMAGES = ["n", 3, 8, 8]


def all_in(dtype: int, opset: int = 20) -> Any:
    steps = [(f"Conv conv:{dtype}", {}), ("Relu", {}), *POOL, (f"Gemm fc:{dtype}", {"transB": 1})]
    return build(chain(*steps), {"x": (dtype, IMAGES)}, dtype, opset)


def partly_in(dtype: int, opset: int = 20) -> Any:
    """Two convolutions in float32, and between and behind them what is computed in another type."""
    there, back = ("Cast", {"to": dtype}), ("Cast", {"to": FLOAT})
    steps = [
        *[(f"Conv conv:{FLOAT}", {}), there, ("Relu", {}), back, (f"Conv conv2:{FLOAT}", {}), *POOL],
        *[there, (f"Gemm fc:{dtype}", {"transB": 1}), back],
    ]
    return build(chain(*steps), {"x": (FLOAT, IMAGES)}, FLOAT, opset)


def between(dtype: int) -> Any:
    """A float32 model whose input and output are of another type."""
    steps = [
        *[("Cast", {"to": FLOAT}), (f"Conv conv:{FLOAT}", {}), ("Relu", {}), *POOL],
        *[(f"Gemm fc:{FLOAT}", {"transB": 1}), ("Cast", {"to": dtype})],
    ]
    return build(chain(*steps), {"x": (dtype, IMAGES)}, dtype)


def images() -> Any:
    """Bytes are images until the model makes floats of them."""
    steps = [("Cast", {"to": FLOAT}), (f"Conv conv:{FLOAT}", {}), *POOL, (f"Gemm fc:{FLOAT}", {"transB": 1})]
    return build(chain(*steps), {"x": (TensorProto.UINT8, IMAGES)}, FLOAT)


def words(dtype: int) -> Any:
    """Looks integers up in a table, leaves out those that a mask leaves out, and takes the mean."""
    nodes = [
        helper.make_node("Gather", [f"table:{FLOAT}", "x"], ["rows"], "rows"),
        helper.make_node("Cast", ["mask"], ["kept"], "kept", to=FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["column"], "column"),
        helper.make_node("Mul", ["rows", "column"], ["some"], "some"),
        helper.make_node("ReduceMean", ["some", "middle"], ["mean"], "mean", keepdims=0),
        helper.make_node("Gemm", ["mean", f"fc:{FLOAT}"], ["y"], "gemm", transB=1),
    ]
    model = build(nodes, {"x": (dtype, ["n", 6]), "mask": (TensorProto.BOOL, ["n", 6])}, FLOAT)
    for name, axis in (("last", 2), ("middle", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([axis]), name))
    return model


IDS = RANDOM.integers(0, 16, (12, 6))
MASK = {"mask": RANDOM.integers(0, 2, (12, 6)).astype(bool)}
JOBS: dict[str, tuple[Any, dict[str, np.ndarray]]] = {
    "float16 inside": (partly_in(HALF), {"x": X.astype(np.float32)}),
    "bfloat16 inside": (partly_in(BFLOAT), {"x": X.astype(np.float32)}),
    "float64 inside": (partly_in(DOUBLE), {"x": X.astype(np.float32)}),
    "float16": (all_in(HALF), {"x": X.astype(np.float16)}),
    "float16 in and out": (between(HALF), {"x": X.astype(np.float16)}),
    "float64 in and out": (between(DOUBLE), {"x": X}),
    "bfloat16": (all_in(BFLOAT, 22), {"x": X.astype(np.float32)}),
    "bfloat16 before opset 22": (all_in(BFLOAT), {"x": X.astype(np.float32)}),
    "bfloat16 in and out": (between(BFLOAT), {"x": X.astype(np.float32)}),
    "uint8": (images(), {"x": RANDOM.integers(0, 256, X.shape).astype(np.uint8)}),
    "int32 and bool": (words(TensorProto.INT32), {"x": IDS.astype(np.int32), **MASK}),
    "int64 and bool": (words(TensorProto.INT64), {"x": IDS, **MASK}),
}


def computed(model: Path, names: Sequence[str], arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes for tensors of a model."""
    proto = onnx.load(model)
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return [np.asarray(array) for array in session.run(None, arrays)]


@pytest.mark.parametrize(("model", "arrays"), JOBS.values(), ids=JOBS.keys())
def test_the_whole_job(folder: Path, ptq: Any, model: Any, arrays: dict[str, np.ndarray]) -> None:
    onnx.save(model, folder / "numbers.onnx")
    np.savez(folder / "numbers.npz", **arrays)
    assert ptq("calibrate numbers.onnx --data numbers.npz --set data.batch_size=5 --run run").status == 0
    found = load_calibration(folder / "run/calibration.safetensors").statistics
    fed = {name: item for name, item in found.items() if name not in arrays}
    for item, array in zip(
        fed.values(), computed(folder / "run/model.float.onnx", list(fed), arrays), strict=True
    ):
        np.testing.assert_allclose([item.low, item.high], [array.min(), array.max()], rtol=1e-5)
        assert item.count == array.size
    assert ptq("export --run run").status == 0
    assert ptq("evaluate --eval-data numbers.npz --run run").status == 0
    report = json.loads((folder / "run/report.json").read_text())
    signal = next(metric for metric in report["metrics"] if metric["name"] == "sqnr_db")
    assert signal["quantized_value"] > 25


def test_float64_is_refused_by_name(folder, refuse):
    onnx.save(all_in(DOUBLE), folder / "numbers.onnx")
    np.savez(folder / "numbers.npz", x=X)
    hint = "export float64 in float32"
    refuse(
        "calibrate numbers.onnx --data numbers.npz",
        "PTQ-RUNTIME-001",
        "an implementation for Conv",
        hint=hint,
    )


MODULE = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, inner: torch.dtype, outer: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.fc = torch.nn.Linear(8, 5).to(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x)).mean((2, 3))
        return self.fc(x.to(self.inner)).to(self.outer)


def half() -> torch.nn.Module:
    return Net(torch.float16)


def double() -> torch.nn.Module:
    return Net(torch.float64)


def brain() -> torch.nn.Module:
    return Net(torch.bfloat16)


def brain_out() -> torch.nn.Module:
    return Net(torch.float32, torch.bfloat16)
"""


@pytest.fixture
def checkpoint(folder: Path) -> Any:
    """Write the checkpoint of one of the modules above, and return the command that calibrates it."""

    def write(name: str) -> str:
        (folder / "net.py").write_text(MODULE)
        names: dict[str, Any] = {}
        exec(MODULE, names)
        torch.manual_seed(0)
        torch.save(names[name]().state_dict(), folder / "net.pt")
        return f"calibrate net.pt --arch net.py:{name} --data calib.npz --set data.batch_size=5 --run run"

    return write


@pytest.mark.parametrize("name", ["half", "double", "brain", "brain_out"])
def test_pytorch_computes_partly_in_another_type(ptq: Any, checkpoint: Any, name: str) -> None:
    assert ptq(checkpoint(name)).status == 0
    assert ptq("export --run run").status == 0
    assert ptq("evaluate --eval-data eval.npz --run run").status == 0

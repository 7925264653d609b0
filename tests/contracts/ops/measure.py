"""From a graph to its quantized model by ptq's own verbs, and what ONNX Runtime makes of that."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import ptq_cli
from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import LayerPlan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.session import Session, Written
from tests.contracts.ops.case import OpCase
from tests.unit.plan.graphs import build, run, sample, serialized, sqnr_db

CALIBRATED, UNSEEN = range(16), 99  # Seeds of the batches
# How the names of ONNX Runtime's integer kernels begin.
INTEGER = ("QLinear", "QGemm", "MatMulInteger", "DynamicQuantizeLSTM")


@dataclass(frozen=True)
class Measured:
    """A quantized model.

    Attributes:
        layers: of the prepared float model, as planned.
        content: the quantized model.
        kernels: how many integer kernels of each type ONNX Runtime runs.
        sqnr: of each output, by whether ONNX Runtime optimizes the model.
    """

    layers: tuple[LayerPlan, ...]
    content: bytes
    kernels: Mapping[str, int]
    sqnr: Mapping[bool, list[float]]


def measure(case: OpCase, folder: Path) -> Measured:
    """Calibrate and export in this process, and run the result on a batch that was not calibrated on."""
    model = build(case.graph, case.opset, dict(case.constants))
    (folder / "model.onnx").write_bytes(serialized(model))
    np.savez(folder / "data.npz", **joined([sample(model, seed) for seed in CALIBRATED]))
    ptq_cli.quantize(
        folder / "model.onnx",
        run=folder / "run",
        data=str(folder / "data.npz"),
        batch_size=batch_size(model),
        latency=False,
        prefer="size",  # the graphs are too small to save anything
    )
    content = (folder / "run" / "model_int8.onnx").read_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    Session(content, threads=1, writes=Written(folder / "optimized.onnx"))
    kernels = Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
    inputs = sample(model, UNSEEN)
    wanted = run(model, inputs, optimize=False)
    sqnr = {
        optimize: [
            sqnr_db(reference, found)
            for reference, found in zip(wanted, run(content, inputs, optimize=optimize), strict=True)
        ]
        for optimize in (True, False)
    }
    plan = make_plan(ir.load(folder / "run" / "model.float.onnx"), load_target("ort-cpu"))
    return Measured(
        plan.layers,
        content,
        {name: count for name, count in kernels.items() if name.startswith(INTEGER)},
        sqnr,
    )


def joined(batches: list[dict[str, Array]]) -> dict[str, Array]:
    """Return batches one behind the other."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def batch_size(model: ir.Model) -> int:
    """Return the first size of the inputs, or 4 where they allow any."""
    sizes = [value.shape[0] for value in model.graph.inputs if value.shape is not None]
    return next((size for size in sizes if isinstance(size, int)), 4)

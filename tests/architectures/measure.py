"""An architecture through all of ptq, with its default settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

import ptq_cli
from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.tensors import Array
from ptq_cli.plan.multiply_accumulates import multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import LayerPlan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.session import Session
from tests.architectures.registry import FOLDER, Architecture

CALIBRATED, EVALUATED = 128, 64  # Samples


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came out.

    Attributes:
        layers: of the float graph, each planned as integer or with its reason.
        integer_share: of the multiply-accumulates, those that are computed in integers.
        sqnr_db: of all outputs, on samples that were not calibrated on.
        outputs: of the quantized model on a few of them, by whether ONNX Runtime optimizes it.
        content: the quantized model.
    """

    layers: tuple[LayerPlan, ...]
    integer_share: float
    sqnr_db: float
    outputs: Mapping[bool, list[Array]]
    content: bytes


def measure(architecture: Architecture, folder: Path) -> Measured:
    """Save the weights, and quantize and evaluate as a user does."""
    arch = f"{FOLDER / architecture.arch.partition(':')[0]}:{architecture.arch.partition(':')[2]}"
    with ptq_cli.trust_code():
        module = load_entry_point(arch, Path.cwd(), "--arch")()
    torch.save(module.state_dict(), folder / "model.pt")
    for seed, (name, count) in enumerate({"calib": CALIBRATED, "eval": EVALUATED}.items()):
        np.savez(folder / f"{name}.npz", **architecture.draw(np.random.default_rng(seed), count))
    result = ptq_cli.quantize(
        folder / "model.pt",
        run=folder / "run",
        arch=arch,
        data=str(folder / "calib.npz"),
        eval_data=str(folder / "eval.npz"),
        metric=["sqnr_db"],
        evaluate=True,
        latency=False,
    )
    if result.evaluation is None:
        raise RuntimeError("it was to be evaluated")
    metrics = {metric.name: metric for metric in result.evaluation.report.metrics}
    path = folder / "run" / "model_int8.onnx"
    with np.load(folder / "eval.npz") as arrays:
        inputs = {name: arrays[name][:4] for name in arrays}
    outputs = {on: Session(path, threads=1, optimize=on).run(inputs) for on in (True, False)}
    graph = ir.load(folder / "run" / "model.float.onnx")
    plan = make_plan(graph, load_target("ort-cpu"))
    counts = multiply_accumulates(graph, {name: array.shape for name, array in inputs.items()}).counts
    integer = sum(counts[layer.name] or 0 for layer in plan.layers if layer.quantized)
    share = integer / sum(count or 0 for count in counts.values())
    return Measured(
        layers=plan.layers,
        integer_share=share,
        sqnr_db=metrics["sqnr_db"].quantized_value,
        outputs=outputs,
        content=path.read_bytes(),
    )

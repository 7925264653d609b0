"""A small graph that is planned, calibrated, exported and run once, for all that is promised of it."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.runtime.session import Session, Written
from tests.unit.plan.cases.case import Case
from tests.unit.plan.cases.tables import CASES
from tests.unit.plan.graphs import as_measured, build, quantized, run, sample, serialized

COMPARED = 9  # Seed of the batch on which the models are compared, the last of those that were calibrated on


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A small graph and what became of it.

    Attributes:
        name: the graph's, in the table of cases.
        case: what the table says of it.
        target: the rules.
        model: the float model, as it is after the export.
        before: its bytes before the export.
        plan: for the target.
        result: the quantized model.
        content: its bytes.
        wanted: the float model's outputs.
        written: the quantized model's, run operator by operator.
        optimized: the quantized model's, optimized by ONNX Runtime.
        kernels: the graph that ONNX Runtime made of the quantized model.
    """

    name: str
    case: Case
    target: Target
    model: ir.Model
    before: bytes
    plan: Plan
    result: ir.Model
    content: bytes
    wanted: list[Array]
    written: list[Array]
    optimized: list[Array]
    kernels: onnx.GraphProto

    def constant(self, name: str) -> Array:
        """Return a constant of the quantized model."""
        constant = self.result.graph.initializers[name].const_value
        assert constant is not None
        return constant.numpy()


def export(name: str, target: str | Target) -> Exported:
    """Calibrate a case's graph on ten batches, and export it."""
    rules = load_target(target) if isinstance(target, str) else target
    model = build(CASES[name].graph)
    before = serialized(model)
    plan = make_plan(model, rules)
    result = quantized(model, plan)
    content = serialized(result)
    inputs = sample(model, seed=COMPARED)
    optimized, kernels = run_optimized(content, inputs, rules)
    return Exported(
        name=name,
        case=CASES[name],
        target=rules,
        model=model,
        before=before,
        plan=plan,
        result=result,
        content=content,
        wanted=run(before, inputs),
        written=run(content, inputs, optimize=False, target=rules),
        optimized=optimized,
        kernels=kernels,
    )


def run_optimized(
    content: bytes, inputs: dict[str, Array], target: Target
) -> tuple[list[Array], onnx.GraphProto]:
    """Return a model's outputs, and the graph that ONNX Runtime ran for them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        session = Session(content, threads=1, kernels=as_measured(target), writes=Written(path))
        return session.run(inputs), onnx.load(path).graph


def finite(array: Array) -> Array:
    """Return the values as doubles, with zeros where they are infinite or huge."""
    # A masked score is -3.4e38, and products of it are infinite on both sides.
    wide = array.astype(np.float64)
    return np.where(np.isfinite(wide) & (np.abs(wide) < 1e6), wide, 0.0)

"""One random model through preparation, planning, calibration and export, with everything that must hold."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from ptq_cli.core.errors import NothingToQuantizeError
from ptq_cli.core.tensors import Array
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.qdq.proof.structure import structure_faults
from tests.properties.noise import noise_errors, rms
from tests.properties.random_graphs import BATCH
from tests.quantized import quantize_model
from tests.unit.plan.graphs import parameters, run, sample, serialized

AS_PREPARED = 1e-4
"""Of the largest output: what preparation may move it by."""


@dataclass(frozen=True)
class Outcome:
    """How one model fared.

    Attributes:
        refused: why nothing in it can be quantized; then the rest is empty.
        ratios: error over what noise explains, of each output, as the model is written and optimized.
    """

    refused: str = ""
    ratios: tuple[float, ...] = ()


def check(proto: onnx.ModelProto, target: Target) -> Outcome:
    """Take a model through, and assert all that holds of any model."""
    original = ir.from_proto(proto)
    batches = [sample(original, seed, BATCH) for seed in range(4)]
    wanted = run(original, batches[0], optimize=False)
    model = prepare(ir.from_proto(proto), "random.onnx")
    assert_same(wanted, run(model, batches[0], optimize=False))
    try:
        plan = make_plan(model, target)
    except NothingToQuantizeError as error:
        return Outcome(refused=error.message)
    assert [layer.name for layer in plan.layers if not layer.quantized and not layer.reason] == []
    # ONNX Runtime's integer Softmax makes 0 of a probability of 1 on the grid of the HTP.
    optimizing = (False,) if target.pairs_as_written else (False, True)
    return _quantized(model, plan, batches, target, optimizing)


def assert_same(wanted: list[Array], found: list[Array]) -> None:
    """Assert that preparation changed nothing but the last bits."""
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape
        assert np.max(np.abs(one - other), initial=0.0) <= AS_PREPARED * np.max(np.abs(one), initial=1e-3)


def _quantized(
    model: ir.Model,
    plan: Plan,
    batches: list[dict[str, Array]],
    target: Target,
    optimizing: tuple[bool, ...],
) -> Outcome:
    decided = parameters(model, plan, batches)
    result = quantize_model(model, plan, decided)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert list(structure_faults(result)) == []
    inputs, content = batches[0], serialized(result)
    reference = run(model, inputs, optimize=False)
    allowed = noise_errors(model, plan, decided, inputs)
    ratios = []
    for optimize in optimizing:
        outputs = run(content, inputs, optimize=optimize, target=target)
        for wanted, output, noise in zip(reference, outputs, allowed, strict=True):
            assert wanted.shape == output.shape
            tiny = 1e-5 * max(float(np.max(np.abs(wanted), initial=0.0)), 1e-3)
            ratios.append(rms(wanted, output) / (noise + tiny))
    return Outcome(ratios=tuple(ratios))

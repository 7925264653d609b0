"""Measure the profile of a model here, and what a tensor costs between integers and floats."""

import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime

from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.latency.integer_twin import integer_twin
from ptq_cli.latency.operator_times import OperatorTimes, operator_times
from ptq_cli.latency.run_times import fast_runs
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.integer_operators import MICROSOFT
from ptq_cli.models.pair_operators import dequantized_by, is_pair_node, quantized_by
from ptq_cli.placement.fastest_placement import (
    Seam,
    circuit_of_profile,
    fastest_placement,
    predicted,
    unit_sides,
)
from ptq_cli.placement.machine_profile import MachineProfile, NodeTimes
from ptq_cli.plan.bound_shapes import bind_shapes
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import QUICK_GELU, Target
from ptq_cli.qdq.write.float_forms import write_float_forms

SEAM = Seam(fixed=6.0, element=0.0004)
"""Where the search begins: measured with ONNX Runtime 1.31 on x86-64 with VNNI."""
SEAM_SCALES = (0.25, 4.0)  # what a machine's may differ by; more is a disturbed measurement


def runtime_version() -> str:
    """The runtime that profiles are measured with."""
    return f"onnxruntime {onnxruntime.__version__}"


def operators_digest(model: ir.Model) -> str:
    """A digest of the operators, their names and the shapes of their constants; of no numbers."""
    lines = []
    for node in model.graph:
        shapes = [
            str(value.shape) if value is not None and value.const_value is not None else ""
            for value in node.inputs
        ]
        lines.append(f"{node.name}|{node.op_type}|{','.join(shapes)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def measure_profile(
    model: ir.Model,
    plan: Plan,
    target: Target,
    batches: Sequence[Mapping[str, Array]],
    *,
    batch: int,
    threads: int,
    seconds: float = 6.0,
    progress: ProgressCallback = silent,
) -> MachineProfile:
    """How long each node of a model takes on this machine.

    The float model, and one with everything in integers that can be, are profiled. The placement that follows
    is then measured as a whole, and says what a tensor costs between the two.

    In ``plan`` everything is in integers that can be; batches are of the size that is served.
    """
    progress(Progress("measuring operators in float and in integers", 0, None))
    twin, plain = integer_twin(model, plan, target), model.clone()
    write_float_forms(plain, plan)
    floating, integer = operator_times([plain, twin], batches, threads=threads, seconds=seconds * 0.7)
    progress(Progress("measuring the placement", 0, None))
    spent = [
        _by_owner(found, _owners(model, written)) for found, written in ((floating, plain), (integer, twin))
    ]
    nodes = {
        name: NodeTimes(*(times.get(name, 0.0) for times in spent))
        for name in (node.name or "" for node in model.graph)
    }
    shapes = bind_shapes(model, {name: array.shape for name, array in batches[0].items()}).shapes
    profile = MachineProfile(
        model=operators_digest(model),
        target=target.name,
        runtime_operators=target.runtime_operators,
        runtime=runtime_version(),
        machine=platform.processor() or platform.machine(),
        batch=batch,
        threads=threads,
        floating=floating.total,
        integer=integer.total,
        spread=max(floating.spread, integer.spread),
        seam_fixed=SEAM.fixed,
        seam_element=SEAM.element,
        nodes=nodes,
        elements={name: int(np.prod(shape)) for name, shape in shapes.items() if None not in shape},  # type: ignore[arg-type]
    )
    return _with_seam_of_here(model, plan, target, batches, profile, (plain, twin), seconds * 0.3)


def _with_seam_of_here(
    model: ir.Model,
    plan: Plan,
    target: Target,
    batches: Sequence[Mapping[str, Array]],
    profile: MachineProfile,
    extremes: tuple[ir.Model, ir.Model],
    seconds: float,
) -> MachineProfile:
    """The profile with the seam that explains the time of a placement that has some.

    The float model and the integer one take turns with it, and say how much slower or faster the machine has
    become since they were profiled.
    """
    placement = fastest_placement(model, plan, target, profile)
    if not placement.in_float or not placement.plan.activations:
        return profile  # There is no seam whose cost matters.
    candidate = integer_twin(model, placement.plan, target)
    raced = [serialize(item) for item in (candidate, *extremes)]
    runs = fast_runs(raced, batches, threads=profile.threads, seconds=seconds)
    time, floating, integer = (item.fast for item in runs)
    measured = time * math.sqrt(profile.floating / floating * profile.integer / integer)
    circuit, seam = circuit_of_profile(model, plan, profile), Seam(profile.seam_fixed, profile.seam_element)
    sides = unit_sides(circuit, placement.plan)
    free = predicted(circuit, Seam(0.0, 0.0), sides)
    crossing = predicted(circuit, seam, sides) - free
    scale = float(np.clip((measured - free) / crossing, *SEAM_SCALES)) if crossing > 0 else 1.0
    return replace(profile, seam_fixed=seam.fixed * scale, seam_element=seam.element * scale)


def _by_owner(found: OperatorTimes, owners: Mapping[str, str]) -> Mapping[str, float]:
    """The microseconds of each node of the float model, by its name."""
    spent: dict[str, float] = {}
    for name, time in found.by_node.items():
        if (owner := owners.get(name)) is not None:
            spent[owner] = spent.get(owner, 0.0) + time * found.scale
    return spent


def _owners(model: ir.Model, written: ir.Model) -> dict[str, str]:
    """The node of the float model that each node of one written for a target computes, by name.

    Pairs that are left belong to no node: they are what a tensor costs between integers and floats. Those
    around an operator of the runtime's own belong to it, since no placement has it without them.
    """
    own = {node.name or "" for node in model.graph}
    owners = {}
    for node in written.graph:
        name = node.name or ""
        owner = name if name in own else name.rpartition("/")[0]
        if owner in own and not (is_pair_node(node) and name not in own):
            owners[name] = owner
        if node.op_type == QUICK_GELU and node.domain == MICROSOFT:
            pairs = [dequantized_by(node.inputs[0]), *quantized_by(node.outputs[0])]
            owners.update({pair.name or "": name for pair in pairs if pair is not None})
    return owners

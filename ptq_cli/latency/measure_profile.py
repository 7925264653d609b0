"""The profile of a model on this machine, for ``bench --profile`` and ``prefer = "latency"``.

How long it takes does not depend on its ranges, so it can be measured where there is no calibration.
"""

import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx_ir as ir
import onnxruntime

from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import ProfileError, ProfilerError
from ptq_cli.core.files import write_together
from ptq_cli.core.formats import IntegerFormat
from ptq_cli.core.memory import SHORTEST_RUN, too_spread
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.core.tensors import Array
from ptq_cli.latency.operator_times import OperatorTimes, fast_runs, operator_times
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.files.storing import is_large
from ptq_cli.models.graph_reading import every_node
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.models.pair_operators import CLAMPS, MICROSOFT, dequantized_by, is_pair_node, quantized_by
from ptq_cli.placement.fastest_placement import (
    LatencyPreference,
    MachineProfile,
    NodeTimes,
    Seam,
    circuit_of_profile,
    fastest_placement,
    predicted,
    unit_sides,
)
from ptq_cli.plan.graph_questions import clip_bound
from ptq_cli.plan.multiply_accumulates import bind_shapes
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.plan.target.rules import QUICK_GELU, Target
from ptq_cli.qdq.write.operator_forms import write_float_forms, write_runtime_operators
from ptq_cli.qdq.write.padding import pad_channels
from ptq_cli.qdq.write.quantize_graph import quantize_in_place
from ptq_cli.qdq.write.site_parameters import decide_all
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.setup.float_model import float_model_of, open_source
from ptq_cli.setup.output_checks import input_files, require_output
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.served_inputs import inputs_of_recipe, served_batch

RANGE = (-4.0, 4.0)


def integer_twin(model: ir.Model, plan: Plan, target: Target) -> ir.Model:
    """A quantized copy of a model for measurements of time alone."""
    twin = model.clone()
    producers = {value.name: node for node in every_node(model.graph) for value in node.outputs}

    def decide(site: ActivationSite) -> QuantParameters:
        low, high = _range(producers.get(site.source))
        if not site.symmetric and isinstance(site.format, IntegerFormat):
            return parameters_from_range(low, high, site.format)
        scale = scale_from_amax(max(-low, high), site.format)
        middle = 0 if site.format.signed else int(site.format.qmax + 1) // 2
        return QuantParameters(scale, np.asarray(middle), site.format)

    quantize_in_place(twin, plan, decide_all(twin, plan, decide))
    write_runtime_operators(twin, plan)
    pad_channels(twin, target.weight.channel_multiple, target.activation.channel_multiple)
    return twin


def _range(producer: ir.Node | None) -> tuple[float, float]:
    """A range that makes a Relu or Clip before it redundant, as a calibrated one does."""
    if producer is None or producer.op_type not in CLAMPS:
        return RANGE
    low, high = (
        (0.0, None) if producer.op_type == "Relu" else (clip_bound(producer, 1), clip_bound(producer, 2))
    )
    return (RANGE[0] if low is None else low, RANGE[1] if high is None else high)


# Where the search begins: measured with ONNX Runtime 1.31 on x86-64 with VNNI.
SEAM = Seam(fixed=6.0, element=0.0004)
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
    """The profile with the seam that explains the time of a placement that has some."""
    # The float model and the integer one take turns with it, and say how much slower or faster the machine
    # has become since they were profiled.
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
    """The node of the float model that each node of one written for a target computes, by name."""
    # Pairs that are left belong to no node: they are what a tensor costs between integers and floats. Those
    # around an operator of the runtime's own belong to it, since no placement has it without them.
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


def prefer_latency(
    model: ir.Model, plan: Plan, resolved: Resolved, progress: ProgressCallback = silent
) -> LatencyPreference:
    """Which layers are faster in float, by the recipe's profile or by a measurement on this machine.

    A model that is too fast to measure, and a machine that is too busy, decide nothing: everything stays in
    integers, and ``undecided`` says why.
    """
    target, settings = resolved.target, resolved.recipe.export
    if settings.profile is not None:
        profile = read_document(MachineProfile, Path(settings.profile))
        _require_same(profile, model, target, Path(settings.profile).name)
    else:
        profile = profile_here(model, plan, resolved, progress)
    undecided = "" if settings.profile is not None else _undecided(profile)
    found = fastest_placement(model, plan, target, profile)
    return LatencyPreference(
        in_float={} if undecided else found.in_float,
        expected=profile.integer if undecided else found.expected,
        floating=profile.floating,
        integer=profile.integer,
        batch=profile.batch,
        threads=profile.threads,
        source=settings.profile or "",
        undecided=undecided,
        profile=None if undecided else profile,
    )


def profile_here(
    model: ir.Model, plan: Plan, resolved: Resolved, progress: ProgressCallback = silent
) -> MachineProfile:
    """The profile of a model on this machine, for the batch and the threads of the recipe."""
    target, asked = resolved.target, resolved.recipe.export.serve_batch
    engine = engine_of(target)
    if engine is None or not engine.has_profiler:
        why = f"ptq has no profiler for {engine.title}" if engine else "no installed runtime runs it"
        raise ProfilerError(
            f"the operators of target '{target.name}' cannot be measured: {why}",
            hint="leave --prefer out, or choose the target ort-cpu",
        )
    if is_large(model):
        raise ProfilerError(
            "the model is above 2 GB, and both of its forms would have to be in memory",
            hint="leave --prefer out",
        )
    specs = input_specs(model)
    batch = served_batch(specs, asked)
    inputs = inputs_of_recipe(resolved, model, specs, batch)
    return measure_profile(
        model, plan, target, inputs.batches, batch=batch, threads=resolved.machine.threads, progress=progress
    )


def _undecided(profile: MachineProfile) -> str:
    fastest = min(profile.floating, profile.integer)
    if fastest < SHORTEST_RUN * 1e6:
        return f"a run takes {fastest:.3g} µs, which is too short to measure its parts"
    return too_spread(profile.spread)


def _require_same(profile: MachineProfile, model: ir.Model, target: Target, name: str) -> None:
    if profile.model != operators_digest(model):
        raise ProfileError(f"'{name}' is the profile of another model", hint=MachineProfile.FORMAT.hint)
    if profile.target != target.name:
        raise ProfileError(
            f"'{name}' is a profile for target '{profile.target}', not '{target.name}'",
            hint=f"pass --target {profile.target}, or run ptq bench --operators again with --set "
            f"quantization.target={target.name}",
        )
    if profile.runtime_operators != target.runtime_operators:
        kind, value = ("with", "true") if profile.runtime_operators else ("without", "false")
        raise ProfileError(
            f"'{name}' was measured {kind} ONNX Runtime's own operators, and this model is not",
            hint=f"pass --set quantization.runtime_operators={value}, or run ptq bench --operators again "
            "without it",
        )
    if profile.runtime != runtime_version():
        raise ProfileError(
            f"'{name}' was measured with {profile.runtime}, and this is {runtime_version()}",
            hint="install the same version here, or run ptq bench --operators again with this one",
        )


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """What ``ptq bench --operators`` measured."""

    output: Annotated[Path, "The profile's file."]
    profile: Annotated[MachineProfile, "What was measured."]
    expected: Annotated[float, "Microseconds of a run in the placement that the profile chooses."]
    in_float: Annotated[int, "How many layers that placement leaves in float although they could be integer."]
    notes: Annotated[tuple[str, ...], "What a user should know of the model."] = ()


def run_profile(request: Request, output: Path, progress: ProgressCallback = silent) -> ProfileResult:
    """Measure how long each operator of a model takes here, in float and in integers, and write it."""
    resolved = resolve(request)
    recipe = resolved.recipe
    require_output(output, input_files(recipe))
    settings = recipe.calibration
    reading = resolved.strict_reading()
    dataset = reading.open(settings.data, settings.samples) if settings.data is not None else None
    model, told = float_model_of(resolved, open_source(recipe.model), dataset)
    plan = make_plan(model.model, resolved.target)
    profile = profile_here(model.model, plan, resolved, progress)
    found = fastest_placement(model.model, plan, resolved.target, profile)
    write_together({output: to_json(profile).encode()})
    return ProfileResult(
        output=output,
        profile=profile,
        expected=found.expected,
        in_float=len(found.in_float),
        notes=(*told, *model.notes),
    )

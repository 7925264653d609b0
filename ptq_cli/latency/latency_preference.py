"""``prefer = "latency"``: the layers that stay in float because a machine is faster with them so."""

from pathlib import Path

import onnx_ir as ir

from ptq_cli.core.documents import read_document
from ptq_cli.core.errors import ProfileError, ProfilerError
from ptq_cli.core.measured_times import SHORTEST_RUN, too_spread
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.latency.measure_profile import measure_profile, operators_digest, runtime_version
from ptq_cli.models.files.storing import is_large
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.placement.fastest_placement import LatencyPreference, fastest_placement
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.plan.sites import Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.runtime.engine_registry import engine_of
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.served_inputs import inputs_of_recipe, served_batch


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

"""``profile``: measure on this machine what ``export.profile`` decides by on another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ptq_cli.core.documents import to_json
from ptq_cli.core.files import write_together
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.latency.latency_preference import profile_here
from ptq_cli.placement.fastest_placement import fastest_placement
from ptq_cli.placement.machine_profile import MachineProfile
from ptq_cli.plan.planner import make_plan
from ptq_cli.setup.float_model import float_model_of, open_source
from ptq_cli.setup.output_checks import input_files, require_output
from ptq_cli.setup.resolve import Request, resolve


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

"""``calibrate --moments``: the calibration data run again, for the moments that ``--recover`` needs."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from ptq_cli.calibdata.bind import bind_inputs, fixed_batch_size
from ptq_cli.calibdata.dataset.selection import WHOLE, Shard, parse_shard
from ptq_cli.calibration.loaded_run import LoadedRun, loaded_run
from ptq_cli.core.progress import ProgressCallback, silent
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.pipeline.exporting.decide_model import decided_model
from ptq_cli.pipeline.run_calibrate import joined_ranks
from ptq_cli.recover.collect_moments import MomentSubject, measure_blocks, moments_provenance
from ptq_cli.recover.interrupted_recovery import Interruptions
from ptq_cli.recover.moments_file import Moments, moments_bytes, parse_moments, save_moments
from ptq_cli.recover.quantized_layer import quantized_layers
from ptq_cli.recover.recovery_data import calibrated_data
from ptq_cli.recover.run_rungs import free_scales, largest_values
from ptq_cli.recover.tensor_moments import MomentSite, moment_sites
from ptq_cli.setup.output_checks import input_files, require_outputs
from ptq_cli.setup.ranks import find_ranks, require_single
from ptq_cli.setup.resolve import Request
from ptq_cli.setup.resumable import discard_checkpoint
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group


OPTION = "--moments"


@dataclass(frozen=True, kw_only=True)
class MomentsResult:
    """What ``ptq calibrate --moments`` collected."""

    DERIVED: ClassVar[tuple[str, ...]] = ("moments",)

    run: Annotated[RunDirectory, "Where the file is."]
    samples: Annotated[int, "How many samples were seen."]
    tensors: Annotated[int, "Of how many tensors there are moments."]
    shards: Annotated[str, "Which part of the set was seen, such as shard 2 of 8; empty for all of it."]
    without_moments: Annotated[dict[str, str], "Layers without moments, with why."]

    @property
    def moments(self) -> Path:
        """The file with the moments."""
        return self.run.moments


def run_moments(
    request: Request,
    run: RunDirectory,
    progress: ProgressCallback = silent,
    *,
    shard: str | None = None,
    restart: bool = False,
) -> MomentsResult:
    """Run the data of a calibration again, and write the moments of what its layers read.

    The integers are those of the ranges that the run's recipe decides, which an export has to share.
    """
    part = parse_shard(shard) if shard is not None else WHOLE
    ranks = find_ranks(os.environ)
    require_single(ranks if shard is not None else None, "one shard")
    with joined_ranks(ranks) as group:
        if restart and (ranks is None or ranks.is_first):
            _discard_blocks(run)
        with loaded_run(request, run) as loaded:
            require_outputs(run, input_files(loaded.resolved.recipe))
            result = _collect(loaded, run, group.shard if group is not None else part, progress, group)
    return result


def _collect(
    loaded: LoadedRun, run: RunDirectory, shard: Shard, progress: ProgressCallback, group: "Group | None"
) -> MomentsResult:
    inputs = input_specs(loaded.float_model.load())
    recipe = loaded.resolved.recipe
    dataset = calibrated_data(loaded.resolved, loaded.calibration, loaded.graph, loaded.float_model, OPTION)
    sites, refused = _sites(loaded, run, progress)
    subject = MomentSubject(
        model=loaded.float_model.load(),
        stored=loaded.float_model,
        inputs=inputs,
        dataset=bind_inputs(dataset, inputs),
        batch_size=fixed_batch_size(inputs) or recipe.data.batch_size,
        allow_nonfinite=recipe.calibration.allow_nonfinite,
    )
    machine = loaded.resolved.machine
    if group is not None:
        machine = replace(machine, threads=group.ranks.threads(machine.threads))
    moments = measure_blocks(
        subject,
        sites,
        machine,
        moments_provenance(loaded.calibration, sites, shard, subject.batch_size),
        progress,
        folder=run.path,
        every=recipe.runtime.checkpoint_every if group is None else None,
        after_batch=group.after_batch if group is not None else None,
        join=_join(group),
    )
    if group is None or group.ranks.is_first:
        save_moments(moments, run.moments)
        _discard_blocks(run)
    share = moments.provenance.share
    return MomentsResult(
        run=run,
        samples=moments.provenance.samples,
        tensors=len(sites),
        shards=share.describe() if share is not None else "",
        without_moments=refused,
    )


def _join(group: "Group | None") -> Callable[[Moments, int], Moments]:
    if group is None:
        return lambda part, _block: part

    def unpack(content: bytes, name: str) -> Moments:
        return parse_moments(np.frombuffer(content, np.uint8), name)

    return lambda part, block: group.merge(part, moments_bytes, unpack, f" {block}")


def _sites(
    loaded: LoadedRun, run: RunDirectory, progress: ProgressCallback
) -> tuple[list[MomentSite], dict[str, str]]:
    """Return the tensors that the layers of the quantized model read, and which layers are left out."""
    resolved, calibration, float_model = loaded.resolved, loaded.calibration, loaded.float_model
    made = decided_model(
        resolved,
        calibration,
        float_model,
        loaded.graph,
        run,
        run.quantized_file(resolved.recipe.weights),
        None,
        None,
        Interruptions(progress, asked=False),
        progress,
    )
    graph = float_model.load()
    layers, refused = quantized_layers(graph, made.plan, made.parameters, free_scales(made.placement))
    samples = calibration.provenance.samples
    return moment_sites(layers.values(), largest_values(calibration, graph), samples), refused


def _discard_blocks(run: RunDirectory) -> None:
    for path in run.path.glob("moments.partial-*.safetensors"):
        discard_checkpoint(path)

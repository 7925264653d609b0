"""How the tapped model is run: as fast as it can be, or below a limit of memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import onnx_ir as ir

from ptq_cli.calibdata.bind import fixed_batch_size
from ptq_cli.calibdata.dataset.batches import DECODED_AHEAD, Batch, cut
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.core.memory import give_back_freed_blocks, most_resident_bytes, resident_bytes
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.core.words import format_bytes
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.files.storing import release
from ptq_cli.models.graph_reading import nested_values
from ptq_cli.runtime import cuda
from ptq_cli.runtime.machine import Machine
from ptq_cli.runtime.session import NO_ARENA, Session, SessionPlace
from ptq_cli.runtime.tapping.memory_plan import (
    MemoryPlan,
    Needs,
    plan_memory,
    require_host_memory,
    tapped_sizes,
)
from ptq_cli.runtime.tapping.pieces import Forward, ForwardPass, begins_with, nothing, samples_of_piece
from ptq_cli.runtime.tapping.tapped import ENOUGH_BYTES, FAST, TappedModel, most_at_once
from ptq_cli.runtime.tapping.taps import tap

STATISTICS_BYTES = 200_000  # of a tensor with a histogram: its table and what was settled of it
SESSION_BYTES = 6 << 20  # of a session whatever its weights: its graph, its threads, its kernels
# While a session is opened: the graph, its serialized form, and what ONNX Runtime reads of it.
COPIES_OF_WEIGHTS = 3


class Runnable(Protocol):
    """A float model: its graph, the same as its files hold it, and specs of its inputs."""

    @property
    def model(self) -> ir.Model:
        """The graph."""

    @property
    def stored(self) -> StoredModel:
        """The model as its files hold it."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Specs of its inputs."""


def open_forward(
    model: Runnable,
    taps: Sequence[str],
    machine: Machine,
    data: Dataset,
    batch_size: int,
    progress: ProgressCallback,
) -> Forward:
    """How batches are run for the values of ``taps``.

    The first batch of the data tells the sizes, if there is a limit of memory.
    """
    release(model.model)
    if not taps:
        # A model of one layer may need the range of its input alone, and no graph runs without an output.
        return Forward((ForwardPass(taps=(), run=nothing),))
    if not machine.device.is_host:
        return _open_on_device(model, taps, machine, data, batch_size, progress)
    threads, limit = machine.threads, machine.memory
    nested = _has_nested(model, taps)
    if limit is None:
        whole, tapped = _runs_whole(model, taps), tap(model.model, taps)
        size = replace(FAST, enough_bytes=ENOUGH_BYTES, whole=whole)
        return TappedModel(tapped, taps, threads=threads, size=size, sizes_vary=nested).forward()
    plan = _plan(model, taps, machine, limit, next(data.batches(batch_size)))
    progress(Progress("calibrate", 0, None, note=f"below {format_bytes(limit)} of memory: {plan}"))
    models = [
        TappedModel(tap(model.model, group), group, threads=threads, sizes_vary=nested, plan=plan)
        for group in plan.groups
    ]
    return Forward(tuple(part.one_pass() for part in models), plan.at_once, models[0].split)


def _has_nested(model: Runnable, taps: Sequence[str]) -> bool:
    return not nested_values(model.model.graph).isdisjoint(taps)


def _runs_whole(model: Runnable, taps: Sequence[str]) -> bool:
    """Whether batches are run as they are: what a branch or a loop does may depend on all samples."""
    return _has_nested(model, taps) or fixed_batch_size(model.inputs) is not None


def _open_on_device(
    model: Runnable,
    taps: Sequence[str],
    machine: Machine,
    data: Dataset,
    batch_size: int,
    progress: ProgressCallback,
) -> Forward:
    from ptq_cli.runtime.tapping.on_device import DeviceModel, device_pieces

    device, limit = machine.device, machine.memory
    place = SessionPlace(device, memory=limit)
    session = Session(tap(model.model, taps), threads=machine.threads, place=place)
    if not cuda.has_kernel_compiler():
        note = f"PyTorch counts on {device}, one tensor at a time; 'ptq-cli[cuda]' counts all at once"
        progress(Progress("calibrate", 0, None, note=note))
    size = replace(device_pieces(device, limit), whole=_runs_whole(model, taps))
    forward = DeviceModel(session, taps, size, sizes_vary=_has_nested(model, taps)).forward()
    if limit is not None:
        batch = next(data.batches(batch_size))
        # The libraries of a GPU take the most of the host's memory; after a first run they are loaded.
        forward.passes[0].run(forward.split(batch)[0].inputs)
        waiting = (DECODED_AHEAD + 2) * sum(array.nbytes for array in batch.inputs.values())
        more = waiting + STATISTICS_BYTES * len(taps)
        peak = require_host_memory(most_resident_bytes(), more, limit)
        note = f"below {format_bytes(limit)} of the host's memory: about {format_bytes(peak)} at the most"
        progress(Progress("calibrate", 0, None, note=f"{note}; the {len(taps)} tensors stay on {device}"))
    return forward


def _plan(model: Runnable, taps: Sequence[str], machine: Machine, limit: int, batch: Batch) -> MemoryPlan:
    give_back_freed_blocks()
    reached = most_resident_bytes()
    whole = _runs_whole(model, taps) or not samples_are_apart(model, batch)
    least = batch.size if whole else 1
    part = cut(batch, 0, least)
    before = resident_bytes()
    sizes, grown = tapped_sizes(model.model, taps, part.inputs)
    # A branch that is not taken now gives nothing, and may give as much as any other.
    largest = max(sizes.values())
    each = {name: -(-(size or largest) // least) for name, size in sizes.items()}
    weights, mapped = model.stored.size, model.stored.is_apart
    of_session = weights if mapped else 2 * weights  # as they are, and as its operators want them
    # Beside those that wait: one that is decoded, with the bytes it is made of, one that finds no room, and
    # the one that is run.
    waiting = (DECODED_AHEAD + 4) * sum(array.nbytes for array in batch.inputs.values())
    needs = Needs(
        reached=reached,
        base=max(before, resident_bytes()),
        fixed=(0 if mapped else COPIES_OF_WEIGHTS * weights) + STATISTICS_BYTES * len(taps) + waiting,
        session=SESSION_BYTES + of_session,
        scratch=max(grown // least - of_session, 3 * max(each.values())),
        taps=each,
    )
    size = replace(FAST, enough_bytes=ENOUGH_BYTES)
    useful = max(least, min(batch.size, samples_of_piece(sum(each.values()), size)))
    at_once = most_at_once(machine.threads, whole_batches=whole)
    return plan_memory(needs, limit, most_samples=useful, least_samples=least, at_once=at_once)


def samples_are_apart(model: Runnable, batch: Batch) -> bool:
    """Whether what the model computes for a sample is the same whatever else is in its batch."""
    if batch.size == 1:
        return True
    session = Session(model.stored, threads=1, place=NO_ARENA)
    try:
        first, both = (session.run(cut(batch, 0, size).inputs) for size in (1, 2))
    except RuntimeFailedError:
        return False
    return all(begins_with(two, one, 2) for one, two in zip(first, both, strict=True))

"""The tensors are taken in blocks that fit into memory: a pass over the data for each."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ptq_cli.calibdata.dataset.batches import checked
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.selection import EVERY_BATCH, Selection, Shard
from ptq_cli.calibration.calibration_checkpoint import CheckpointWriter, advance, resume
from ptq_cli.calibration.count_batches import (
    AfterBatch,
    Piece,
    count_batches,
    non_finite_error,
)
from ptq_cli.calibration.open_forward import open_forward
from ptq_cli.collectors.calibration_file import Calibration, Provenance, statistics_digest
from ptq_cli.collectors.share import Share
from ptq_cli.core.errors import InputFileError, MomentsFileError, NonFiniteActivationError, StaleMomentsError
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.recover.moments_file import METHOD, Moments, load_moments, save_moments
from ptq_cli.recover.tensor_moments import MomentSite, TensorMomentCollector, TensorMoments, total_bytes
from ptq_cli.runtime.machine import Device, Machine
from ptq_cli.runtime.tapping.pieces import Tensor

# The calibration data are run once more, and the products of what layers read are added up.


STAGE = "moments"


@dataclass(frozen=True, kw_only=True)
class MomentSubject:
    """What is run for moments.

    Attributes:
        dataset: whose arrays have the names of the inputs.
    """

    model: ir.Model
    stored: StoredModel
    inputs: tuple[TensorSpec, ...]
    dataset: Dataset
    batch_size: int
    allow_nonfinite: bool


def collect_moments(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    progress: ProgressCallback,
    *,
    selection: Selection = EVERY_BATCH,
    seen: int = 0,
    after_batch: AfterBatch | None = None,
    checkpoints: CheckpointWriter[TensorMoments] | None = None,
    initial: Mapping[str, TensorMoments] | None = None,
) -> tuple[dict[str, TensorMoments], int, int]:
    """Return the moments of tensors, and how many batches and samples were run.

    ``checkpoints``, ``initial`` and ``seen`` are as for ``count_batches``. Models are run on the processor.
    """
    fed = {spec.name for spec in subject.inputs}
    taps = [site.tensor for site in sites if site.tensor not in fed]
    size, dataset = subject.batch_size, subject.dataset
    forward = open_forward(
        subject, taps, replace(machine, device=Device()), dataset, size, progress, {}, kept=total_bytes(sites)
    )
    batches = dataset.batches(size, selection)
    count = selection.samples(dataset.count, size) if dataset.count is not None else None
    work = _Work(sites, fed, allow_nonfinite=subject.allow_nonfinite)
    return count_batches(
        work.run_and_count,
        work.statistics,
        forward,
        batches if subject.allow_nonfinite else checked(batches),
        stage=STAGE,
        total=count,
        seen=seen,
        progress=progress,
        after_batch=after_batch,
        checkpoints=checkpoints,
        initial=initial,
    )


class _Work:
    """Runs pieces and collects from what they gave, in any of several threads."""

    def __init__(self, sites: Sequence[MomentSite], fed: set[str], *, allow_nonfinite: bool) -> None:
        self._collectors = {site.tensor: TensorMomentCollector(site) for site in sites}
        self._locks = {name: threading.Lock() for name in self._collectors}
        self._inputs = [name for name in self._collectors if name in fed]
        self._images = {site.tensor for site in sites if site.is_of_images}
        self._allow_nonfinite = allow_nonfinite

    def run_and_count(self, piece: Piece) -> NonFiniteActivationError | None:
        """Return what is wrong with the piece's tensors, if anything is."""
        arrays = piece.turn.run(piece.batch.inputs)
        given = dict(zip(piece.turn.taps, arrays, strict=True))
        found = {name: self._view(piece, name)(name, array) for name, array in given.items()}
        if piece.first:
            found |= {name: piece.batch.inputs[name] for name in self._inputs}
        error = None
        for name, array in found.items():
            with self._locks[name]:
                finite = self._collectors[name].update(array)
            if not finite and not self._allow_nonfinite and error is None:
                whole = piece.turn.in_model_order(name, given[name]) if name in given else array
                error = non_finite_error(name, whole, piece, is_nested=False)
        found.clear()
        given.clear()
        piece.turn.recycle(arrays)
        return error

    def _view(self, piece: Piece, name: str) -> Callable[[str, Tensor], Array]:
        return piece.turn.by_channels if name in self._images else piece.turn.in_model_order

    def statistics(self) -> dict[str, TensorMoments]:
        return {name: collector.statistics() for name, collector in self._collectors.items()}


MEMORY_SHARE = 4
"""One part of so many of the memory that is allowed is for the sums; the model and the data need the rest."""
IN_MEMORY = 2 << 30
"""Bytes, where no limit is given."""
STATISTICS, RANGES = "calibration.statistics", "activations.ranges"
"""What moments depend on, beside what the calibration does."""


def divided(sites: Sequence[MomentSite], memory: int | None) -> list[list[MomentSite]]:
    """Return the tensors in blocks whose sums fit into memory; a tensor that does not is alone."""
    limit = memory // MEMORY_SHARE if memory is not None else IN_MEMORY
    blocks: list[list[MomentSite]] = []
    for site in sites:
        if blocks and total_bytes([*blocks[-1], site]) <= limit:
            blocks[-1].append(site)
        else:
            blocks.append([site])
    return blocks


def moments_provenance(
    calibration: Calibration, sites: Sequence[MomentSite], shard: Shard, batch_size: int
) -> Provenance:
    """Return what the moments of a shard are made from, before its first batch."""
    begun = calibration.provenance
    text = "\n".join(f"{site.tensor} {site.grid} {[item.key for item in site.readings]}" for site in sites)
    own = {
        STATISTICS: repr(statistics_digest(calibration.statistics)),
        RANGES: repr(hashlib.sha256(text.encode()).hexdigest()),
    }
    return replace(
        begun,
        settings=begun.settings | own,
        method=METHOD,
        samples=0,
        share=Share(shard.count, {shard.number: 0}, batch_size, finished=False),
    )


def require_fit(moments: Moments, wanted: Provenance, name: str) -> None:
    """Refuse moments that rest on another calibration or on other ranges."""
    has = moments.provenance
    for reason, fits in (
        ("another model", has.model == wanted.model),
        ("another calibration", has.settings.get(STATISTICS) == wanted.settings[STATISTICS]),
        ("other ranges of activations", has.settings.get(RANGES) == wanted.settings[RANGES]),
    ):
        if not fits:
            raise StaleMomentsError(
                f"'{name}' holds moments of {reason}",
                hint="run ptq calibrate --moments again with the recipe that is exported, or remove the file",
            )
    if has.share is not None:
        raise StaleMomentsError(
            f"'{name}' holds moments of {has.share.describe()}, missing: {has.share.describe_missing()}",
            hint="run ptq merge to combine the shards",
        )


def measure_blocks(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    begun: Provenance,
    progress: ProgressCallback,
    *,
    folder: Path | None,
    every: float | None = None,
    after_batch: AfterBatch | None = None,
    join: Callable[[Moments, int], Moments] = lambda part, _block: part,
) -> Moments:
    """Return the moments of all tensors, each block from its last checkpoint on.

    In ``folder`` the moments of blocks wait, and checkpoints are, every so many seconds; without it there is
    one block and no checkpoint. ``join`` puts a block together with those of other processes; where there are
    some, none continues another's.
    """
    blocks = divided(sites, machine.memory)
    if len(blocks) > 1:
        note = (
            f"the moments of {len(sites)} tensors take {len(blocks)} passes to stay below the limit of memory"
        )
        progress(Progress(STAGE, 0, None, note=note))
    found: dict[str, TensorMoments] = {}
    provenance = begun
    for number, block in enumerate(blocks):
        path = folder / f"moments.partial-{number + 1}.safetensors" if folder is not None else None
        part = _finished(path, begun, block) if path is not None and every is not None else None
        if part is None:
            part = join(_measure(subject, block, machine, begun, progress, path, every, after_batch), number)
            if path is not None and len(blocks) > 1:
                save_moments(part, path)
                part = load_moments(path)
        found |= part.statistics
        provenance = part.provenance
    return Moments(provenance, found)


def _measure(
    subject: MomentSubject,
    sites: Sequence[MomentSite],
    machine: Machine,
    begun: Provenance,
    progress: ProgressCallback,
    path: Path | None,
    every: float | None,
    after_batch: AfterBatch | None,
) -> Moments:
    def tell(note: str) -> None:
        progress(Progress(STAGE, 0, None, note))

    names = [site.tensor for site in sites]
    initial = writer = None
    if path is not None and every is not None and subject.dataset.is_resumable:
        begun, initial, writer = resume(path, begun, names, every, tell, load=load_moments, save=save_moments)
    share = begun.share
    if share is None:
        raise ValueError("a part is of a shard")
    ((number, done),) = share.batches.items()
    statistics, batches, samples = collect_moments(
        subject,
        sites,
        machine,
        progress,
        selection=Selection(Shard(number, share.count), done),
        seen=begun.samples,
        after_batch=after_batch,
        checkpoints=writer,
        initial=initial,
    )
    return Moments(advance(begun, batches, samples, finished=True), statistics)


def _finished(path: Path, begun: Provenance, sites: Sequence[MomentSite]) -> Moments | None:
    """Return a block that an earlier run has finished; None if there is none of this very calibration."""
    try:
        found = load_moments(path)
    except (InputFileError, MomentsFileError):
        return None
    share, wanted = found.provenance.share, begun.share
    is_same = replace(found.provenance, samples=0, share=None) == replace(begun, samples=0, share=None)
    if wanted is None or not is_same or set(found.statistics) != {site.tensor for site in sites}:
        return None
    if share is None:
        return found if wanted.count == 1 else None
    fits = (share.count, share.batches.keys(), share.batch_size) == (
        wanted.count,
        wanted.batches.keys(),
        wanted.batch_size,
    )
    return found if fits and share.finished else None

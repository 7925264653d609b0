"""The part of the data that a process runs: all batches, one shard, or the share of a rank of torchrun."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptq_cli.calibdata.dataset.batches import WHOLE, Shard, parse_shard
from ptq_cli.core.progress import Progress, ProgressCallback, silent
from ptq_cli.setup.ranks import find_ranks, require_single
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.run_directory import RunDirectory

if TYPE_CHECKING:
    from ptq_cli.setup.distributed import Group


@dataclass(frozen=True)
class Part:
    """The share of the batches that this process runs.

    Every rank of a ``group`` makes the same models; what is measured on samples is shared out, and what a
    clock or a folder says is what the first rank reads there. Ranks write no checkpoints: the shares of one
    number of processes do not continue those of another, as ``--shard`` does.

    Example:
        >>> alone = Part()
        >>> alone.is_first, alone.agreed(lambda: True), alone.from_first(lambda: b"profile")
        (True, True, b'profile')
    """

    shard: Shard = WHOLE
    group: "Group | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this process writes."""
        return self.group is None or self.group.ranks.is_first

    def go_on(self, *_done: int) -> None:
        """Say that there is progress, and raise what another rank has raised."""
        if self.group is not None:
            self.group.go_on()

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """Content that the first rank makes, on every rank."""
        if self.group is None:
            return make()
        return self.group.announce(make() if self.is_first else b"", self.group.next_place())

    def agreed(self, ask: Callable[[], bool]) -> bool:
        """The first rank's answer, on every rank."""
        return bool(self.from_first(lambda: b"yes" if ask() else b""))

    def on_own_machine(self, resolved: Resolved) -> Resolved:
        """The recipe with this rank's own threads and GPU."""
        if self.group is None:
            return resolved
        ranks, machine = self.group.ranks, resolved.machine
        device = machine.device.for_rank(ranks.local_rank)
        return replace(
            resolved, machine=replace(machine, device=device, threads=ranks.threads(machine.threads))
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a verb works with: the recipe, the run directory, its part of the data, and who hears of it."""

    resolved: Resolved
    run: RunDirectory
    part: Part = Part()
    progress: ProgressCallback = silent

    def tell(self, note: str, stage: str) -> None:
        """Tell a note."""
        self.progress(Progress(stage, 0, None, note))


@contextmanager
def opened_part(shard: str | None = None) -> Iterator[Part]:
    """Yield the part of ``--shard``, of this rank of torchrun, or all of the data.

    Ranks end together: what one raises inside the block, all raise.
    """
    part = Part(parse_shard(shard) if shard is not None else WHOLE)
    ranks = find_ranks(os.environ)
    require_single(ranks if shard is not None else None, "one shard")
    if ranks is None:
        yield part
        return
    from ptq_cli.setup.distributed import joined

    with joined(ranks) as group:
        yield Part(group.shard, group)
        group.wait_for_all("written")

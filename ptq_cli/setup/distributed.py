"""The ranks of ``torchrun`` as a group that exchanges what each has measured.

Each rank is one shard. Their statistics are exchanged as the bytes of calibration files, never as pickled
objects, and the first rank merges them: ``ptq merge`` without the files between.
"""

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from ptq_cli.calibdata.dataset.batches import Shard
from ptq_cli.collectors.calibration_file import (
    Calibration,
    NamedCalibration,
    calibration_bytes,
    merge_calibrations,
    parse_calibration,
)
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.errors import RanksError
from ptq_cli.core.process import stdout_apart
from ptq_cli.setup.ranks import JOIN_SECONDS, SILENCE_SECONDS, RankMessages, Ranks, lost_as_error, open_store

_uses = itertools.count()  # of torchrun by this process: each has keys of its own in the store


class Group:
    """The ranks of one verb, from the view of one of them; made by ``joined``."""

    def __init__(self, ranks: Ranks, talk: RankMessages, group: dist.ProcessGroup | None) -> None:
        self.ranks = ranks
        self.shard = Shard(ranks.rank + 1, ranks.world)
        self._talk = talk
        self._group = group
        self._places = itertools.count()

    def go_on(self) -> None:
        """Say that there is progress, and raise what another rank has raised."""
        self._talk.go_on()

    def wait_for_all(self, place: str) -> None:
        """Wait until every rank is at this place; raises as ``RankMessages.wait_for_all`` does."""
        self._talk.wait_for_all(place)

    def merge(self, mine: Calibration) -> Calibration:
        """What all ranks have counted together, on every rank."""
        content, place = calibration_bytes(mine), self.next_place()
        self.wait_for_all(f"counted{place}")
        if self.ranks.is_first:
            merged = calibration_bytes(merge_calibrations(self._received(mine)))
        else:
            self._send_to_first(content)
            merged = b""
        self.wait_for_all(f"merged{place}")
        return parse_calibration(self._broadcast(merged), "the merged calibration")

    def next_place(self) -> str:
        """A name for what comes next, which all ranks do in the same order."""
        return str(next(self._places))

    def exchange(self, mine: bytes, place: str) -> list[bytes]:
        """The content that each rank gives, in their order, on every rank."""
        self.wait_for_all(f"measured {place}")
        if not self.ranks.is_first:
            self._send_to_first(mine)
        given = [mine, *(self._receive_from(rank) for rank in self._others())]
        padded = given if self.ranks.is_first else [b""] * self.ranks.world
        return [self._broadcast(content) for content in padded]

    def announce(self, content: bytes, place: str) -> bytes:
        """The first rank's content, on every rank.

        Only that of the first rank counts.
        """
        self.wait_for_all(f"announced {place}")
        return self._broadcast(content)

    def _others(self) -> range:
        """The ranks that this one receives from: the first one all others, the others nobody."""
        return range(1, self.ranks.world if self.ranks.is_first else 1)

    def _received(self, mine: Calibration) -> Iterator[NamedCalibration[TensorStatistics]]:
        yield NamedCalibration("rank 0", mine)
        for rank in self._others():
            name = f"rank {rank}"
            yield NamedCalibration(name, parse_calibration(self._receive_from(rank), name))

    def _receive_from(self, rank: int) -> bytes:
        with lost_as_error():
            size = torch.empty(1, dtype=torch.int64)
            dist.recv(size, rank, self._group)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(content, rank, self._group)
        return content.numpy().tobytes()

    def _send_to_first(self, content: bytes) -> None:
        with lost_as_error():
            dist.send(torch.tensor([len(content)]), 0, self._group)
            dist.send(_as_tensor(content), 0, self._group)

    def _broadcast(self, content: bytes) -> bytes:
        with lost_as_error():
            size = torch.tensor([len(content)])
            dist.broadcast(size, 0, self._group)
            if not int(size):
                return b""
            data = _as_tensor(content) if self.ranks.is_first else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, 0, self._group)
        return data.numpy().tobytes()


@contextlib.contextmanager
def joined(ranks: Ranks) -> Iterator[Group]:
    """Give the group of all ranks; what one of them raises inside the block, all raise."""
    store = PrefixStore(str(next(_uses)), open_store(ranks))
    talk = RankMessages(ranks, store)
    with _told_to_end():
        try:
            talk.wait_for_all("joined", JOIN_SECONDS)
            with _process_group(ranks, store) as group:
                # One that fails at once would close its connections while others still make theirs.
                talk.wait_for_all("connected", JOIN_SECONDS)
                yield Group(ranks, talk, group)
        except (Exception, _EndedError) as raised:  # noqa: BLE001 - raised again, on every rank
            error = _as_error(raised)
            raise talk.report(error) from (raised.__cause__ if error is raised else raised)


@contextlib.contextmanager
def _process_group(ranks: Ranks, store: Store) -> Iterator[dist.ProcessGroup | None]:
    limit = timedelta(seconds=SILENCE_SECONDS)
    group: dist.ProcessGroup | None = None
    with lost_as_error():
        if dist.is_initialized():  # by the script that called, for what it does besides
            group = dist.new_group(backend="gloo", timeout=limit)
        else:
            with stdout_apart():  # Before torch 2.10 Gloo prints there that it is connected.
                dist.init_process_group(
                    "gloo", store=store, rank=ranks.rank, world_size=ranks.world, timeout=limit
                )
    try:
        yield group
    finally:
        # Of a group whose peers are gone it may raise as well, and what is said of that is said already.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group(group)


class _EndedError(BaseException):
    """``torchrun`` ends this process; no ``except Exception`` on the way takes it for its own failure."""


def _as_error(raised: Exception | _EndedError) -> Exception:
    if isinstance(raised, Exception):
        return raised
    return RanksError(
        "torchrun is ending this command: another process ended, or it was stopped",
        hint="find the process that ended first; the usual cause is too little memory",
    )


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Raise where ``torchrun`` ends this process because another one was killed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: object) -> NoReturn:
        raise _EndedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)

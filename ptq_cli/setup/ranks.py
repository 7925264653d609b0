"""Which of several processes this is, as ``torchrun`` says it, and messages among them through its store.

An error of one rank reaches all others within a batch, and a rank that has vanished is noticed.
"""

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError, RanksError, UsageError, first_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """One of several processes.

    Attributes:
        local: how many of them share this machine.
    """

    rank: int
    world: int
    local: int

    @property
    def is_first(self) -> bool:
        """Whether this one speaks and writes for all."""
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        """Which of those that share this machine; torchrun numbers them one machine after the other."""
        return self.rank % self.local

    def threads(self, of_machine: int) -> int:
        """How many of the machine's threads are this process's own.

        Example:
            >>> Ranks(0, 3, 3).threads(8)
            2
        """
        return max(1, of_machine // self.local)


def find_ranks(environment: Mapping[str, str]) -> Ranks | None:
    """Which of several processes this is, or None if it is the only one."""
    if any(name not in environment for name in VARIABLES):
        return None
    rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else world
    port = _number(environment, "MASTER_PORT")
    if not (rank < world and 1 <= local <= world and 1 <= port < 2**16):
        raise RanksError(
            f"RANK={rank}, WORLD_SIZE={world}, LOCAL_WORLD_SIZE={local} and MASTER_PORT={port} do not fit "
            "each other",
            hint="torchrun sets them; unset RANK to run ptq as a single process",
        )
    return Ranks(rank, world, local) if world > 1 else None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RanksError(
            f"the environment variable {name} is '{text[:40]}', expected a number",
            hint="torchrun sets it; unset RANK to run ptq as a single process",
        )
    return int(text)


def require_single(ranks: Ranks | None, what: str) -> None:
    """Refuse what runs as a single process process."""
    if ranks is not None:
        raise UsageError(
            f"torchrun started {ranks.world} processes, and {what} runs as a single process",
            hint="only calibrate, evaluate and tune run under torchrun; run other commands without it",
        )


# What several processes of one calibration tell one another, through the store of keys of ``torchrun``.
#
JOIN_SECONDS = 300.0  # how long the processes may take to find one another
SILENCE_SECONDS = 1800.0  # a rank that finishes no batch for so long has vanished
PARTING_SECONDS = 3.0
LOOK_SECONDS = 0.05


@functools.cache
def open_store(ranks: Ranks) -> "Store":
    """The store of keys that all ranks share, connected once a process."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=JOIN_SECONDS)
    with lost_as_error():
        store, _, _ = next(rendezvous("env://", ranks.rank, ranks.world, timeout=limit))
        return PrefixStore("ptq", store)


@contextlib.contextmanager
def lost_as_error() -> Iterator[None]:
    """Turn what torch.distributed raises where a peer is gone into an error with a code."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(
            f"another process of this calibration cannot be reached: {first_line(error)}",
            hint="find the process that ended first; the cause is its error or too little memory",
        ) from error


class RankMessages:
    """What the ranks tell one another during one calibration: progress, an error, and where they wait.

    The keys of the store are of this calibration alone.
    """

    def __init__(self, ranks: Ranks, store: "Store") -> None:
        self._ranks = ranks
        self._store = store
        self._looked = 0.0

    def go_on(self) -> None:
        """Say that a batch is done, and raise what another rank has raised; at most once a second."""
        now = time.monotonic()
        if now - self._looked < 1.0:
            return
        self._looked = now
        with lost_as_error():
            self._store.add("steps", 1)
        self.raise_first()

    def wait_for_all(self, place: str, silence: float = SILENCE_SECONDS) -> None:
        """Wait until every rank is at this place.

        Each place has a name of its own. After so many seconds of ``silence``, in which no rank made
        progress, those that are missing have vanished.
        """
        names = [f"{place}/{rank}" for rank in range(self._ranks.world)]
        with lost_as_error():
            self._store.set(names[self._ranks.rank], "")
        steps, since = -1, time.monotonic()
        while True:
            with lost_as_error():
                if self._store.check(names):
                    return
                found = self._store.add("steps", 0)
            self.raise_first()
            now = time.monotonic()
            if found != steps:
                steps, since = found, now
            if now - since > silence:
                with lost_as_error():
                    missing = [rank for rank, name in enumerate(names) if not self._store.check([name])]
                raise _vanished(missing, self._ranks.world, silence)
            time.sleep(LOOK_SECONDS)

    def report(self, error: Exception) -> Exception:
        """Tell the others of an error; return the one that was told first, which all raise."""
        mine = json.dumps({"rank": self._ranks.rank, **_as_table(error)})
        try:
            first = self._store.compare_set("error", "", mine).decode()
        except RuntimeError:  # There is nobody left to tell.
            return error
        return error if first == mine else _as_error(first)

    def raise_first(self) -> None:
        """Raise what another rank has told of."""
        with lost_as_error():
            told = self._store.get("error").decode() if self._store.check(["error"]) else ""
        if told:
            raise _as_error(told)


def part_together(ranks: Ranks) -> None:
    """Let the first rank say its last word, and then all end at once.

    ``torchrun`` ends every rank as soon as one has failed: an error would not be heard if the rank that met
    it ended before the one that speaks.
    """
    with contextlib.suppress(RanksError, RuntimeError):
        store = open_store(ranks)
        if ranks.is_first:
            store.set("said", "")
            _wait_for(store, [f"gone/{rank}" for rank in range(1, ranks.world)], PARTING_SECONDS)
        else:
            _wait_for(store, ["said"], JOIN_SECONDS)
            store.set(f"gone/{ranks.rank}", "")


def _wait_for(store: "Store", names: list[str], seconds: float) -> None:
    # Not Store.wait(), which prints a warning where the time is over.
    end = time.monotonic() + seconds
    while not store.check(names) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def _vanished(missing: Sequence[int], world: int, silence: float) -> RanksError:
    names = ", ".join(map(str, missing[:8]))
    return RanksError(
        f"no progress for {silence:.0f} seconds, waiting for rank {names} of {world}",
        hint="check what that process does; it may be waiting for a file system, or was stopped",
    )


def _as_table(error: Exception) -> dict[str, str]:
    if isinstance(error, PtqError):
        return {"code": error.code, "message": error.message, "hint": error.hint}
    return {"code": "", "message": f"{type(error).__name__}: {error}", "hint": ""}


def _as_error(text: str) -> Exception:
    table: dict[str, Any] = json.loads(text)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, PtqError) and kind.code == table["code"]:
            return kind(table["message"], hint=table["hint"])
    return RuntimeError(f"rank {table['rank']} raised {table['message']}")

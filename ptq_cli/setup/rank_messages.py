"""Messages among the ranks of ``torchrun``, through its store of keys.

An error of one rank reaches all others within a batch, and a rank that has vanished is noticed.
"""

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ptq_cli.core import errors
from ptq_cli.core.errors import PtqError, RanksError, first_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store
from ptq_cli.setup.ranks import Ranks

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

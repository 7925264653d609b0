"""Which of several processes this is, as ``torchrun`` says it in environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptq_cli.core.errors import RanksError, UsageError

if TYPE_CHECKING:
    pass

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

"""Batches of a data set that are run: those of one shard, without the ones that are done already.

Shards get whole batches and never single samples: a shard runs exactly the batches that a single run would
have run, so its activations are the same to the last bit, even where a sum depends on the batch's size.
"""

import re
from dataclasses import dataclass

from ptq_cli.core.errors import UsageError


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on: batch ``b``, counted from 0, is of ``b mod count + 1``."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Shard()  # the single shard that holds every batch


@dataclass(frozen=True)
class Selection:
    """The batches of a shard, without its first ones.

    Attributes:
        done: how many batches at its start are left out.

    Example:
        >>> selection = Selection(Shard(2, 3), done=1)
        >>> [number for number in range(12) if number in selection]
        [4, 7, 10]
    """

    shard: Shard = WHOLE
    done: int = 0

    def __contains__(self, number: int) -> bool:
        turn, place = divmod(number, self.shard.count)
        return place == self.shard.number - 1 and turn >= self.done

    def samples(self, total: int, batch_size: int) -> int:
        """Return how many samples are selected from a data set with ``total`` samples."""
        first = (self.done * self.shard.count + self.shard.number - 1) * batch_size
        starts = range(first, total, self.shard.count * batch_size)
        # Only the last batch of the data set can be smaller.
        return batch_size * len(starts) - max(starts[-1] + batch_size - total, 0) if starts else 0


EVERY_BATCH = Selection()


def parse_shard(text: str) -> Shard:
    """Return the shard that ``--shard 2/8`` names."""
    hint = "--shard 2/8 is the second of eight"
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None:
        raise UsageError(f"--shard '{text[:40]}' is not of the form K/N", hint=hint)
    shard = Shard(int(match[1]), int(match[2]))
    if not shard.count:
        raise UsageError(f"there is no shard '{text}': the number of shards must be at least 1", hint=hint)
    if not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"there is no shard '{text}': {shard.count} shards are numbered from 1 to {shard.count}",
            hint=hint,
        )
    return shard

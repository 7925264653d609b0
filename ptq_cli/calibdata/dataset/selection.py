"""Which batches of a set are wanted: one shard of them, and of that what is not done yet.

Whole batches are dealt out, and never single samples: a shard runs the very batches that a single run would
have run, so its activations are the same to the last bit whatever the size of a batch does to a sum.
"""

import re
from dataclasses import dataclass

from ptq_cli.core.errors import UsageError

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of a set's batches.

    Batch ``b``, counted from 0, belongs to shard ``b mod count + 1``.

    Attributes:
        number: which one, from 1 to ``count``.
        count: how many there are.

    Example:
        >>> str(Shard(2, 8))
        '2/8'
    """

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Shard()
"""The one shard that holds every batch."""


@dataclass(frozen=True)
class Selection:
    """The batches of a shard, without its first ones.

    Attributes:
        shard: whose batches.
        done: how many of the shard's batches are left out at its start.

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
        """Return how many samples are selected of a set with ``total`` of them.

        Example:
            >>> [Selection(Shard(number, 2)).samples(10, 4) for number in (1, 2)]
            [6, 4]
        """
        first = (self.done * self.shard.count + self.shard.number - 1) * batch_size
        starts = range(first, total, self.shard.count * batch_size)
        # Only the set's last batch can be a small one.
        return batch_size * len(starts) - max(starts[-1] + batch_size - total, 0) if starts else 0


EVERY_BATCH = Selection()


def parse_shard(text: str) -> Shard:
    """Return the shard that ``--shard 2/8`` names.

    Raises:
        UsageError: it is not ``K/N`` with K from 1 to N.

    Example:
        >>> parse_shard("2/8")
        Shard(number=2, count=8)
        >>> parse_shard("9/8")
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.UsageError: PTQ-USAGE-001: there is no shard '9/8': of 8 shards the first is 1 \
and the last 8
        hint: --shard 2/8 is the second of eight
    """
    hint = "--shard 2/8 is the second of eight"
    match = _SHARD.fullmatch(text)
    if match is None:
        raise UsageError(f"--shard '{text[:40]}' is not of the form K/N", hint=hint)
    shard = Shard(int(match[1]), int(match[2]))
    if not shard.count:
        raise UsageError(f"there is no shard '{text}': at least one shard is wanted", hint=hint)
    if not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"there is no shard '{text}': of {shard.count} shards the first is 1 and the last {shard.count}",
            hint=hint,
        )
    return shard

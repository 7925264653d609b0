"""Which part of a calibration set a calibration has seen, where that is not all of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST_SHARDS = 10**9
SHOWN_SHARDS = 8


@dataclass(frozen=True)
class Share:
    """The shards that were seen, and how many batches of each.

    Attributes:
        count: into how many shards the batches are dealt; see ``ptq_cli.calibdata.dataset.batches``.
        batches: how many batches were seen, by the shard's number.
        batch_size: samples a batch: shards of batches of different sizes do not make a whole.
        finished: whether these are all of the shards' batches; those of a checkpoint are not.

    Example:
        >>> share = Share(count=8, batches={2: 4, 3: 4}, batch_size=32)
        >>> share.describe(), share.describe_missing()
        ('shards 2 and 3 of 8', 'shards 1, 4, 5, 6, 7 and 8 of 8')
    """

    count: int
    batches: Mapping[int, int]
    batch_size: int
    finished: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.finished and len(self.batches) == self.count

    def describe(self) -> str:
        """Name the shards that it holds."""
        return _name(iter(sorted(self.batches)), len(self.batches), self.count)

    def describe_missing(self) -> str:
        """Name the shards that it does not hold."""
        missing = (number for number in range(1, self.count + 1) if number not in self.batches)
        return _name(missing, self.count - len(self.batches), self.count)


def share_to_table(share: Share | None) -> dict[str, Any] | None:
    """The share as JSON holds it, whose keys are text and whose order is that of the numbers."""
    if share is None:
        return None
    return {
        "batch_size": share.batch_size,
        "batches": [[number, batches] for number, batches in sorted(share.batches.items())],
        "count": share.count,
        "finished": share.finished,
    }


def table_to_share(table: Any) -> Share | None:
    """The share that ``share_to_table`` wrote."""
    if table is None:
        return None
    if not isinstance(table, dict) or set(table) != {"batch_size", "batches", "count", "finished"}:
        raise ValueError("it does not say which shards it holds")
    count, size, pairs = table["count"], table["batch_size"], table["batches"]
    if not (_is_whole_number(count, 1, MOST_SHARDS) and _is_whole_number(size, 1, None)):
        raise ValueError(f"it has {str(count)[:40]} shards and batches of {str(size)[:40]}")
    if type(table["finished"]) is not bool or not isinstance(pairs, list) or not pairs:
        raise ValueError("it does not say which shards it holds, or whether it is finished")
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not _is_whole_number(pair[0], 1, count) or not _is_whole_number(pair[1], 0, None):
            raise ValueError(f"it holds {str(pair)[:40]} of {count} shards")
    batches: dict[int, int] = dict(pairs)
    if list(batches) != sorted(batches) or len(batches) != len(pairs):
        raise ValueError("its shards are not in order, or one is there twice")
    return Share(count, batches, size, table["finished"])


def _is_whole_number(value: object, lowest: int, highest: int | None) -> bool:
    return type(value) is int and value >= lowest and (highest is None or value <= highest)


def _name(numbers: Iterator[int], total: int, count: int) -> str:
    # Of a million missing shards nobody reads the last.
    shown = [str(number) for number in islice(numbers, SHOWN_SHARDS)]
    if total > len(shown):
        return f"shards {', '.join(shown)} and {total - len(shown)} more of {count}"
    if total == 1:
        return f"shard {shown[0]} of {count}"
    return f"shards {', '.join(shown[:-1])} and {shown[-1]} of {count}" if shown else f"no shard of {count}"

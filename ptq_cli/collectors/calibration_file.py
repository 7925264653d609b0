"""``calibration.safetensors``: the statistics, what they were made from, and which share of the set they saw.

Flat arrays hold the statistics; the header of the container says where each tensor's lie.
Only the statistics are kept: every amax method decides from them later.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from ptq_cli.collectors.flat_statistics import FlatArrays, flatten, unflatten
from ptq_cli.collectors.tensor_statistics import TensorStatistics
from ptq_cli.core.container import Container, checksum
from ptq_cli.core.errors import (
    CalibrationFileError,
    IncompleteCalibrationError,
    MergeError,
    OverlappingShardsError,
)
from ptq_cli.core.files import atomic_write
from ptq_cli.core.read_files import read_file

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


_CONTAINER = Container(
    format="ptq.calibration",
    version=4,
    error=CalibrationFileError,
    what="a calibration",
    made_by="`ptq calibrate` writes one: calibration.safetensors",
    again="calibrate again",
    dtypes=("U32", "I64", "F32"),
)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a calibration was made from; it is refused where model, source or settings have changed.

    Attributes:
        model: SHA-256 of ``model.float.onnx``.
        source: SHA-256 of the model's file that the user named.
        data: digest of the calibration set; reported, and not checked again: export needs no data.
        settings: the recipe's settings that the statistics depend on, as text by name; and the hash of each
            file that the model was made from (its weights, its architecture).
        flags: which of those settings the command line set, so that a later stage can tell them from an
            edited recipe.
        method: the collector.
        samples: how many samples were seen.
        share: which part of the calibration set was seen; None for all of it.
    """

    model: str
    source: str
    data: str
    settings: dict[str, str]
    flags: dict[str, Any]
    method: str
    samples: int
    share: Share | None = None


class Mergeable(Protocol):
    """What was counted of some values, and can be added up."""

    def merge(self, other: Self, /) -> Self:
        """Counts of both; raises ValueError if they contradict each other."""


_Item = TypeVar("_Item", bound=Mergeable)


@dataclass(frozen=True)
class Counted(Generic[_Item]):
    """What was counted of each tensor, by its name, with where it comes from."""

    provenance: Provenance
    statistics: dict[str, _Item]


Calibration = Counted[TensorStatistics]  # Statistics by tensor name, with their provenance.


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration, atomically."""
    with atomic_write(path) as partial:
        partial.write_bytes(calibration_bytes(calibration))


def calibration_bytes(calibration: Calibration) -> bytes:
    """The artifact's content; the same statistics give the same bytes."""
    arrays, entries = flatten(calibration.statistics)
    header = {"provenance": provenance_to_table(calibration.provenance), "tensors": entries}
    return _CONTAINER.content(header, arrays)


def statistics_digest(statistics: Mapping[str, TensorStatistics]) -> str:
    """The SHA-256 of the statistics alone, whatever they were made from."""
    arrays, entries = flatten(statistics)
    return checksum({"tensors": entries}, arrays)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration."""
    return parse_calibration(read_file(path, "calibration"), str(path))


def parse_calibration(content: bytes, name: str) -> Calibration:
    """The calibration of a file's content; ``name`` is for messages."""
    return _CONTAINER.parse(content, name, _calibration)


def _calibration(header: dict[str, Any], arrays: FlatArrays) -> Calibration:
    provenance = table_to_provenance(header.get("provenance"))
    return Calibration(provenance, unflatten(header.get("tensors"), arrays))


def provenance_to_table(provenance: Provenance) -> dict[str, Any]:
    """A provenance as plain values for the header of a file."""
    return asdict(provenance) | {"share": share_to_table(provenance.share)}


def table_to_provenance(table: Any) -> Provenance:
    """The provenance that the header of a file holds."""
    hints = typing.get_type_hints(Provenance)
    if not isinstance(table, dict) or set(table) != set(hints):
        raise ValueError("it does not name its sources")
    share = table_to_share(table.pop("share"))
    for name, value in table.items():
        if type(value) is not (typing.get_origin(hints[name]) or hints[name]):
            raise ValueError(f"its '{name}' is {str(value)[:40]}")
    if not all(isinstance(text, str) for text in table["settings"].values()) or table["samples"] < 0:
        raise ValueError("its settings are not text, or its samples are negative")
    return Provenance(**table, share=share)


_SHOWN_LENGTH = 60
SHARDS = "shards of the same calibration"
Named = tuple[str, Provenance, Share]  # A part without its statistics.


@dataclass(frozen=True)
class NamedCalibration(Generic[_Item]):
    """A calibration, and what to call it in a message."""

    name: str
    calibration: Counted[_Item]

    @property
    def share(self) -> Share:
        """What it has seen; all of the set is one shard of one."""
        return self.calibration.provenance.share or Share(1, {1: 0}, 0)


def merge_calibrations(parts: Iterable[NamedCalibration[_Item]], *, partial: bool = False) -> Counted[_Item]:
    """Calibration of all the shards at once: the same bytes.

    The statistics merge exactly, in whatever order and grouping; of the parts, which may hold several shards,
    one at a time is held. With ``partial`` shards may be missing, and the result is a part as well.
    """
    merged: _Merged[_Item] | None = None
    for part in parts:
        if not part.share.finished:
            raise IncompleteCalibrationError(
                f"{part.name} holds a checkpoint of {part.share.describe()}, which is not finished",
                hint="run `ptq calibrate` for it again; it continues where it stopped",
            )
        if merged is None:
            merged = _Merged(part)
        else:
            merged.add(part)
    if merged is None:
        raise ValueError("there is nothing to merge")
    return merged.finish(partial=partial)


class _Merged(Generic[_Item]):
    """The parts so far, as one."""

    def __init__(self, first: NamedCalibration[_Item]) -> None:
        self._name = first.name
        self._provenance = first.calibration.provenance
        self._statistics = first.calibration.statistics
        self._share = first.share
        self._batches = dict(first.share.batches)
        self._holders = dict.fromkeys(first.share.batches, first.name)

    def add(self, part: NamedCalibration[_Item]) -> None:
        found = part.calibration.provenance
        _require_same((self._name, self._provenance, self._share), (part.name, found, part.share))
        for number, batches in part.share.batches.items():
            if number in self._holders:
                raise OverlappingShardsError(
                    f"{self._holders[number]} and {part.name} both hold shard {number} of {part.share.count}",
                    hint="name each shard once",
                )
            self._holders[number], self._batches[number] = part.name, batches
        self._statistics = _merge_statistics(self._statistics, part)
        self._provenance = replace(self._provenance, samples=self._provenance.samples + found.samples)

    def finish(self, *, partial: bool) -> Counted[_Item]:
        share = replace(self._share, batches=self._batches)
        if share.is_whole:
            require_dealt(share)
            return Counted(replace(self._provenance, share=None), self._statistics)
        if not partial:
            raise IncompleteCalibrationError(
                f"not among the runs: {share.describe_missing()}",
                hint="calibrate the missing shards, or pass --partial to merge an incomplete calibration",
            )
        return Counted(replace(self._provenance, share=share), self._statistics)


# Settings that may differ between calibrations of one model on different data.
OF_DATA = ("calibration.data", "calibration.samples", "calibration.set_aside")
WHOLE_CALIBRATIONS = "calibrations of the same model"


def join_calibrations(parts: Iterable[NamedCalibration[_Item]]) -> Counted[_Item]:
    """Calibration on all the data of whole calibrations, as one would have counted.

    The statistics are the same in whatever order; what else the result says of its data is the first's, as
    are its flags, but for a digest of its own. One part at a time is held.
    """
    given = iter(parts)
    first = next(given)
    begun, statistics = first.calibration.provenance, first.calibration.statistics
    digests, samples = [begun.data], begun.samples
    kept = {key: begun.settings[key] for key in OF_DATA if key in begun.settings}
    for part in given:
        found = part.calibration.provenance
        alike = replace(found, data=begun.data, flags=begun.flags, settings=found.settings | kept)
        _require_same((first.name, begun, first.share), (part.name, alike, first.share), WHOLE_CALIBRATIONS)
        statistics = _merge_statistics(statistics, part)
        digests.append(found.data)
        samples += found.samples
    digest = sha256(" ".join(sorted(digests)).encode()).hexdigest() if len(digests) > 1 else begun.data
    return Counted(replace(begun, data=digest, samples=samples), statistics)


def _require_same(first: Named, other: Named, kind: str = SHARDS) -> None:
    one, two = first[1], other[1]
    # The settings first: where they differ, they are why the hashes do.
    for key in sorted(one.settings.keys() | two.settings.keys()):
        if one.settings.get(key) != two.settings.get(key):
            values = one.settings.get(key), two.settings.get(key)
            raise different(first[0], other[0], f"'{key}'", *values, kind=kind)
    for what, field in (("the float model", "model"), ("the model's file", "source"), ("the data", "data")):
        if getattr(one, field) != getattr(two, field):
            digests = (f"sha256 {getattr(item, field)[:12]}…" for item in (one, two))
            raise different(first[0], other[0], what, *digests, kind=kind)
    if one.flags != two.flags:
        raise different(first[0], other[0], "the flags that were given", one.flags, two.flags)
    for what, field in (("number of shards", "count"), ("batch size", "batch_size")):
        values = getattr(first[2], field), getattr(other[2], field)
        if values[0] != values[1]:
            raise different(first[0], other[0], f"the {what}", *values)


def different(first: str, other: str, what: str, one: Any, two: Any, *, kind: str = SHARDS) -> MergeError:
    """The error that says in what two runs differ."""
    found = f"{what} is {_short(one)} in the first and {_short(two)} in the second"
    return MergeError(
        f"{first} and {other} are not {kind}: {found}",
        hint="calibrate every shard with the same model, data, settings and batch size"
        if kind == SHARDS
        else "calibrate both with the same model and settings, or one run with all the data; --recover "
        "equalize and smooth change the model by its data",
    )


def _short(value: Any) -> str:
    text = "not set" if value in (None, "None") else str(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def require_dealt(share: Share) -> None:
    """Refuse shards of data that gave another number of batches each time."""
    # Dealt out in turn, a later shard never has more batches, and never two fewer, than an earlier one.
    total = sum(share.batches.values())
    for number, seen in share.batches.items():
        expected = (total - number) // share.count + 1
        if seen != expected:
            raise MergeError(
                f"shard {number} of {share.count} has seen {seen} of {total} batches, {expected} are its own",
                hint="the data must give the same batches each time it is read",
            )


def _merge_statistics(statistics: dict[str, _Item], part: NamedCalibration[_Item]) -> dict[str, _Item]:
    others = part.calibration.statistics
    if statistics.keys() != others.keys():
        name = min(statistics.keys() ^ others.keys())
        raise MergeError(
            f"{part.name} and the others did not measure the same tensors: '{name}' is not in all of them",
            hint="calibrate every shard with the same version of ptq",
        )
    merged = {}
    for name, item in statistics.items():
        try:
            merged[name] = item.merge(others[name])
        except ValueError as error:
            raise MergeError(
                f"tensor '{name}' of {part.name} does not fit the others: {error}",
                hint="calibrate every shard with the same version of ptq, on the same data",
            ) from error
    return merged

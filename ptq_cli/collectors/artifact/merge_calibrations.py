"""Calibrations of several shards become one: refused unless they are shards of the same calibration."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic

from ptq_cli.collectors.artifact.calibration_file import Counted, Item, Provenance
from ptq_cli.collectors.artifact.share import Share
from ptq_cli.core.errors import IncompleteCalibrationError, MergeError, OverlappingShardsError

SHOWN_LENGTH = 60
Named = tuple[str, Provenance, Share]
"""A part without its statistics."""


@dataclass(frozen=True)
class Part(Generic[Item]):
    """A calibration or moments, and what to call it in a message."""

    name: str
    calibration: Counted[Item]

    @property
    def share(self) -> Share:
        """What it has seen; all of the set is one shard of one."""
        return self.calibration.provenance.share or Share(1, {1: 0}, 0)


def merge_calibrations(parts: Iterable[Part[Item]], *, partial: bool = False) -> Counted[Item]:
    """Return what one calibration of all the shards would have given.

    The statistics merge exactly, in whatever order and grouping; so the result has the same bytes as the
    calibration of the whole set.

    Args:
        parts: at least one, in any order; each holds one shard or several. One at a time is held.
        partial: allow shards to be missing; the result is then a part as well.

    Raises:
        MergeError: they differ in the model, the data, a setting, or in how the batches were dealt.
        OverlappingShardsError: two hold the same shard.
        IncompleteCalibrationError: one is a checkpoint; or shards are missing, and ``partial`` is not set.
        ValueError: there is no part.
    """
    merged: _Merged[Item] | None = None
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


class _Merged(Generic[Item]):
    """The parts so far, as one."""

    def __init__(self, first: Part[Item]) -> None:
        self._name = first.name
        self._provenance = first.calibration.provenance
        self._statistics = first.calibration.statistics
        self._share = first.share
        self._batches = dict(first.share.batches)
        self._holders = dict.fromkeys(first.share.batches, first.name)

    def add(self, part: Part[Item]) -> None:
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

    def finish(self, *, partial: bool) -> Counted[Item]:
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


def _require_same(first: Named, other: Named) -> None:
    one, two = first[1], other[1]
    # The settings first: where they differ, they are why the hashes do.
    for key in sorted(one.settings.keys() | two.settings.keys()):
        if one.settings.get(key) != two.settings.get(key):
            raise different(first[0], other[0], f"'{key}'", one.settings.get(key), two.settings.get(key))
    for what, field in (("the float model", "model"), ("the model's file", "source"), ("the data", "data")):
        if getattr(one, field) != getattr(two, field):
            digests = (f"sha256 {getattr(item, field)[:12]}…" for item in (one, two))
            raise different(first[0], other[0], what, *digests)
    if one.flags != two.flags:
        raise different(first[0], other[0], "the flags that were given", one.flags, two.flags)
    for what, field in (("number of shards", "count"), ("batch size", "batch_size")):
        values = getattr(first[2], field), getattr(other[2], field)
        if values[0] != values[1]:
            raise different(first[0], other[0], f"the {what}", *values)


def different(first: str, other: str, what: str, one: Any, two: Any) -> MergeError:
    """Return the error that says in what two runs differ.

    Example:
        >>> different("'a'", "'b'", "'image.mode'", "'RGB'", "'BGR'").message
        "'a' and 'b' are not shards of the same calibration: 'image.mode' is 'RGB' in the first and 'BGR' in \
the second"
    """
    found = f"{what} is {_short(one)} in the first and {_short(two)} in the second"
    return MergeError(
        f"{first} and {other} are not shards of the same calibration: {found}",
        hint="calibrate every shard with the same model, data, settings and batch size",
    )


def _short(value: Any) -> str:
    text = "not set" if value in (None, "None") else str(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def require_dealt(share: Share) -> None:
    """Refuse shards of data that gave another number of batches each time.

    Raises:
        MergeError: a shard has not seen the batches that are its own.

    Example:
        >>> require_dealt(Share(2, {1: 3, 2: 2}, 32))
    """
    # Dealt out in turn, a later shard never has more batches, and never two fewer, than an earlier one.
    total = sum(share.batches.values())
    for number, seen in share.batches.items():
        expected = (total - number) // share.count + 1
        if seen != expected:
            raise MergeError(
                f"shard {number} of {share.count} has seen {seen} of {total} batches, {expected} are its own",
                hint="the data must give the same batches each time it is read",
            )


def _merge_statistics(statistics: dict[str, Item], part: Part[Item]) -> dict[str, Item]:
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

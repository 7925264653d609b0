"""Calibrations of several shards become one: refused unless they are shards of the same calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptq_cli.collectors.artifact import Calibration
from ptq_cli.collectors.share import Share
from ptq_cli.collectors.statistics import TensorStatistics
from ptq_cli.core.errors import IncompleteCalibrationError, MergeError, OverlappingShardsError

SHOWN_LENGTH = 60


@dataclass(frozen=True)
class Part:
    """A calibration, and what to call it in a message."""

    name: str
    calibration: Calibration

    @property
    def share(self) -> Share:
        """What it has seen; all of the set is one shard of one."""
        return self.calibration.provenance.share or Share(1, {1: 0}, 0)


def merge_calibrations(parts: Sequence[Part], *, partial: bool = False) -> Calibration:
    """Return what one calibration of all the shards would have given.

    The statistics merge exactly, in whatever order and grouping; so the result has the same bytes as the
    calibration of the whole set.

    Args:
        parts: at least one, in any order; each holds one shard or several.
        partial: allow shards to be missing; the result is then a part as well.

    Raises:
        MergeError: they differ in the model, the data, a setting, or in how the batches were dealt.
        OverlappingShardsError: two hold the same shard.
        IncompleteCalibrationError: one is a checkpoint; or shards are missing, and ``partial`` is not set.
    """
    first = parts[0]
    for part in parts:
        if not part.share.finished:
            raise IncompleteCalibrationError(
                f"{part.name} holds a checkpoint of {part.share.describe()}, which is not finished",
                hint="run its ptq calibrate again; it continues where it was",
            )
        _require_same(first, part)
    share = _join_shares(parts, partial=partial)
    statistics = dict(first.calibration.statistics)
    for part in parts[1:]:
        statistics = _merge_statistics(statistics, part)
    samples = sum(part.calibration.provenance.samples for part in parts)
    provenance = replace(first.calibration.provenance, samples=samples, share=share)
    return Calibration(provenance, statistics)


def _require_same(first: Part, other: Part) -> None:
    one, two = first.calibration.provenance, other.calibration.provenance
    # The settings first: where they differ, they are why the hashes do.
    for key in sorted(one.settings.keys() | two.settings.keys()):
        if one.settings.get(key) != two.settings.get(key):
            _refuse(first, other, f"'{key}'", one.settings.get(key), two.settings.get(key))
    for what, field in (("the float model", "model"), ("the model's file", "source"), ("the data", "data")):
        if getattr(one, field) != getattr(two, field):
            _refuse(first, other, what, *(f"sha256 {getattr(item, field)[:12]}…" for item in (one, two)))
    if one.flags != two.flags:
        _refuse(first, other, "the flags that were given", one.flags, two.flags)
    for what, found in (("number of shards", "count"), ("batch size", "batch_size")):
        values = getattr(first.share, found), getattr(other.share, found)
        if values[0] != values[1]:
            _refuse(first, other, f"the {what}", *values)


def _refuse(first: Part, other: Part, what: str, one: Any, two: Any) -> None:
    found = f"{what} is {_short(one)} in the first and {_short(two)} in the second"
    raise MergeError(
        f"{first.name} and {other.name} are no shards of one calibration: {found}",
        hint="calibrate every shard with the same model, data, settings and batch size",
    )


def _short(value: Any) -> str:
    text = "not set" if value in (None, "None") else str(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def _join_shares(parts: Sequence[Part], *, partial: bool) -> Share | None:
    holders: dict[int, Part] = {}
    batches: dict[int, int] = {}
    for part in parts:
        for number, seen in part.share.batches.items():
            if number in holders:
                raise OverlappingShardsError(
                    f"{holders[number].name} and {part.name} both hold shard {number} of {part.share.count}",
                    hint="name each shard once",
                )
            holders[number], batches[number] = part, seen
    share = replace(parts[0].share, batches=batches)
    if not share.is_whole:
        if not partial:
            raise IncompleteCalibrationError(
                f"not among the runs: {share.describe_missing()}",
                hint="calibrate what is missing, or merge to a larger part with --partial",
            )
        return share
    _require_dealt(share)
    return None


def _require_dealt(share: Share) -> None:
    # Dealt out in turn, a later shard never has more batches, and never two fewer, than an earlier one.
    total = sum(share.batches.values())
    for number, seen in share.batches.items():
        expected = (total - number) // share.count + 1
        if seen != expected:
            raise MergeError(
                f"shard {number} of {share.count} has seen {seen} of {total} batches, {expected} are its own",
                hint="the data must give the same batches each time that they are read",
            )


def _merge_statistics(statistics: dict[str, TensorStatistics], part: Part) -> dict[str, TensorStatistics]:
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

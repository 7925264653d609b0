"""Shards of one calibration become the whole; whatever is no shard of it is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from ptq_cli.collectors.calibration_file import (
    Calibration,
    NamedCalibration,
    Provenance,
    Share,
    calibration_bytes,
    merge_calibrations,
    share_to_table,
    table_to_share,
)
from ptq_cli.collectors.collector_registry import make_collector
from ptq_cli.core.errors import IncompleteCalibrationError, MergeError, OverlappingShardsError
from tests.each_case import each_case

RNG = np.random.default_rng(5)
BATCHES = [RNG.normal(scale=2.0**index, size=(4, 3)).astype(np.float32) for index in range(7)]
PROVENANCE = Provenance(
    model="a" * 64,
    source="b" * 64,
    data="c" * 64,
    settings={"calibration.method": "'histogram'", "image.crop": "None"},
    flags={"calibration": {"samples": 28}},
    method="histogram",
    samples=28,
)


def count(batches):
    collectors = {
        "histogram": make_collector("histogram"),
        "range": make_collector("max"),
    }
    for batch in batches:
        for collector in collectors.values():
            assert collector.update(batch)
    return {name: collector.statistics() for name, collector in collectors.items()}


WHOLE = Calibration(PROVENANCE, count(BATCHES))


def shard(number, of, **changes):
    batches = BATCHES[number - 1 :: of]
    share = Share(of, {number: len(batches)}, 4)
    provenance = replace(PROVENANCE, samples=4 * len(batches), **{"share": share, **changes})
    return NamedCalibration(f"'run-{number}'", Calibration(provenance, count(batches)))


def shards(of):
    return [shard(number, of) for number in range(1, of + 1)]


@each_case("of", [1, 2, 3, 7, 9])
def test_all_shards_are_the_whole(of):
    assert calibration_bytes(merge_calibrations(shards(of))) == calibration_bytes(WHOLE)


def test_parts_of_parts_are_the_whole():
    one, two, three, four = shards(4)
    left = NamedCalibration("'left'", merge_calibrations([four, one], partial=True))
    right = NamedCalibration("'right'", merge_calibrations([three, two], partial=True))
    assert left.share == Share(4, {1: 2, 4: 1}, 4)
    assert calibration_bytes(merge_calibrations([right, left])) == calibration_bytes(WHOLE)


def test_missing_shards_are_named():
    with pytest.raises(IncompleteCalibrationError) as caught:
        merge_calibrations(shards(5)[1:3])
    assert caught.value.message == "not among the runs: shards 1, 4 and 5 of 5"
    assert "--partial" in caught.value.hint


def test_a_shard_twice_is_refused():
    with pytest.raises(OverlappingShardsError, match="'run-2' and 'again' both hold shard 2 of 3"):
        merge_calibrations([*shards(3), replace(shard(2, 3), name="'again'")])


def test_overlapping_parts_are_refused():
    one, two, three = shards(3)
    part = NamedCalibration("'part'", merge_calibrations([one, two], partial=True))
    with pytest.raises(OverlappingShardsError, match="'part' and 'run-2' both hold shard 2 of 3"):
        merge_calibrations([part, two, three])


def test_a_checkpoint_is_refused():
    share = Share(2, {2: 1}, 4, finished=False)
    with pytest.raises(IncompleteCalibrationError, match="'run-2' holds a checkpoint of shard 2 of 2"):
        merge_calibrations([shard(1, 2), shard(2, 2, share=share)])


SETTINGS = PROVENANCE.settings
DIFFERENT = {
    "model": ({"model": "d" * 64}, "the float model is sha256 aaaaaaaaaaaa… in the first and sha256 dddd"),
    "source": ({"source": "d" * 64}, "the model's file is sha256 bbbb"),
    "data": ({"data": "d" * 64}, "the data is sha256 cccc"),
    "setting": (
        {"settings": {**SETTINGS, "calibration.method": "'max'"}, "model": "d" * 64},
        "'calibration.method' is 'histogram' in the first and 'max' in the second",
    ),
    "setting that is not set": (
        {"settings": {**SETTINGS, "image.crop": "[4, 4]"}},
        "'image.crop' is not set in the first and [4, 4] in the second",
    ),
    "setting that is not known": (
        {"settings": {**SETTINGS, "image.blur": "1"}},
        "'image.blur' is not set in the first and 1 in the second",
    ),
    "flags": ({"flags": {}}, "the flags that were given is {'calibration': {'samples': 28}} in the first"),
    "number of shards": ({"share": Share(4, {2: 4}, 4)}, "the number of shards is 2 in the first and 4 in"),
    "batch size": ({"share": Share(2, {2: 4}, 8)}, "the batch size is 4 in the first and 8 in the second"),
    "no shard": ({"share": None}, "the number of shards is 2 in the first and 1 in the second"),
}


@each_case("changes, says", DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_named(changes, says):
    with pytest.raises(MergeError) as caught:
        merge_calibrations([shard(1, 2), shard(2, 2, **changes)])
    beginning = "'run-1' and 'run-2' are not shards of the same calibration: "
    assert caught.value.message.startswith(beginning + says)
    assert "same" in caught.value.hint


def test_another_number_of_batches_each_time_is_noticed():
    share = Share(3, {2: 3}, 4)
    with pytest.raises(MergeError, match="shard 2 of 3 has seen 4 of 9 batches, 3 are its own") as caught:
        merge_calibrations([shard(1, 3), shard(2, 3, share=replace(share, batches={2: 4})), shard(3, 3)])
    assert "same batches each time" in caught.value.hint


def test_other_tensors_are_refused():
    one, two = shards(2)
    less = dict(two.calibration.statistics)
    del less["range"]
    with pytest.raises(MergeError, match=r"'run-2' and the others .* 'range' is not in all of them"):
        merge_calibrations([one, NamedCalibration(two.name, replace(two.calibration, statistics=less))])


def test_statistics_that_were_kept_differently_are_refused():
    one, two = shards(2)
    other = {**two.calibration.statistics, "range": two.calibration.statistics["histogram"]}
    with pytest.raises(MergeError, match=r"tensor 'range' of 'run-2' does not fit the others: .*differently"):
        merge_calibrations([one, NamedCalibration(two.name, replace(two.calibration, statistics=other))])


@each_case(
    "share, holds, misses",
    [
        (Share(2, {1: 1}, 1), "shard 1 of 2", "shard 2 of 2"),
        (Share(4, {3: 1, 1: 1}, 1), "shards 1 and 3 of 4", "shards 2 and 4 of 4"),
        (Share(2, {1: 1, 2: 1}, 1), "shards 1 and 2 of 2", "no shard of 2"),
        (Share(10**9, {2: 1}, 1), f"shard 2 of {10**9}", f"{10**9 - 9} more of {10**9}"),
    ],
    ids=["one", "two", "all", "a billion"],
)
def test_words(share, holds, misses):
    assert share.describe() == holds
    assert share.describe_missing().endswith(misses)


GOOD = share_to_table(Share(3, {1: 2, 3: 1}, 8))
DAMAGED = {
    "a list": [],
    "a key too few": {key: GOOD[key] for key in GOOD if key != "count"},
    "a key too many": {**GOOD, "more": 1},
    "no shards": {**GOOD, "count": 0},
    "too many shards": {**GOOD, "count": 10**9 + 1},
    "half a shard": {**GOOD, "count": 2.5},
    "shards that are true": {**GOOD, "count": True},
    "batches of nothing": {**GOOD, "batch_size": 0},
    "a word for finished": {**GOOD, "finished": "yes"},
    "no shard": {**GOOD, "batches": []},
    "a table of shards": {**GOOD, "batches": {"1": 2}},
    "no pair": {**GOOD, "batches": [1, 3]},
    "three in a pair": {**GOOD, "batches": [[1, 2, 3]]},
    "shard 0": {**GOOD, "batches": [[0, 2]]},
    "a shard beyond the last": {**GOOD, "batches": [[4, 2]]},
    "negative batches": {**GOOD, "batches": [[1, -1]]},
    "batches that are text": {**GOOD, "batches": [[1, "2"]]},
    "a shard twice": {**GOOD, "batches": [[1, 2], [1, 2]]},
    "shards out of order": {**GOOD, "batches": [[3, 1], [1, 2]]},
}


@each_case("table", DAMAGED.values(), ids=DAMAGED)
def test_what_cannot_have_been_written_is_refused(table):
    with pytest.raises(ValueError, match=r"shards|holds"):
        table_to_share(table)

"""Which shards a calibration holds: in words, written, and read back from files that may hold anything."""

import pytest

from ptq_cli.collectors.share import Share, share_to_table, table_to_share
from tests.each_case import each_case


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

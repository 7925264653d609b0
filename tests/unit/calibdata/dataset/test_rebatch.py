import numpy as np

from ptq_cli.calibdata.dataset.batches import Batch, cut, rebatch
from tests.each_case import each_case


def batch_of(start, size, width=2, labels=True):
    rows = np.arange(start, start + size)
    values = np.repeat(rows[:, None], width, axis=1).astype(np.float32)
    return Batch({"x": values}, rows if labels else None, tuple(str(row) for row in rows))


def parts(*sizes):
    starts = np.cumsum(sizes, dtype=int) - np.array(sizes, int)
    return [batch_of(int(start), size) for start, size in zip(starts, sizes, strict=True)]


def each(batches):
    yield from batches


@each_case(
    "sizes, batch_size, result",
    [
        ((3, 3, 1), 2, [2, 2, 2, 1]),
        ((3, 3), 3, [3, 3]),
        ((1, 1, 1, 1, 1), 4, [4, 1]),
        ((10,), 4, [4, 4, 2]),
        ((), 4, []),
        ((2, 7), 3, [3, 3, 3]),
    ],
)
def test_sizes_and_order(sizes, batch_size, result):
    found = list(rebatch(each(parts(*sizes)), batch_size))
    total = list(range(sum(sizes)))
    assert [batch.size for batch in found] == result
    assert [name for batch in found for name in batch.names] == [str(row) for row in total]
    assert [label for batch in found for label in batch.labels] == total
    assert [row for batch in found for row in batch.inputs["x"][:, 0]] == total


def test_shapes_that_cannot_be_joined_are_kept_apart():
    batches = [batch_of(0, 3, width=2), batch_of(3, 2, width=5)]
    assert [batch.inputs["x"].shape for batch in rebatch(each(batches), 2)] == [(2, 2), (1, 2), (2, 5)]


def test_batches_without_labels():
    assert [batch.labels for batch in rebatch(each([batch_of(0, 3, labels=False)] * 2), 2)] == [None] * 3


def test_source_may_reuse_its_array():
    buffer = np.zeros((3, 1))

    def reusing():
        for value in (1, 2):
            buffer[:] = value
            yield Batch({"x": buffer}, None, ("a",) * 3)

    found = [batch.inputs["x"].ravel().tolist() for batch in rebatch(reusing(), 2)]
    assert found == [[1, 1], [1, 2], [2, 2]]


def test_cut_of_everything_is_the_batch_itself():
    batch = batch_of(0, 3)
    assert cut(batch, 0, 3) is batch
    assert cut(batch, 1, 2).names == ("1",)

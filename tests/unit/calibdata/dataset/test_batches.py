"""Shards of batches: each batch belongs to one, and what a shard leaves out is not read.

Decoding ahead changes when things happen, and nothing else.
"""

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset, read_rows
from ptq_cli.calibdata.dataset.batches import (
    EVERY_BATCH,
    Batch,
    Selection,
    Shard,
    decoded_ahead,
    parse_shard,
    rebatch,
    require_finite,
)
from ptq_cli.calibdata.dataset.dataset import require_samples
from ptq_cli.calibdata.dataset.labels import as_labels, is_class_index, require_labels
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import (
    DamagedSampleError,
    LabelError,
    NonFiniteDataError,
    RecipeValueError,
    UsageError,
)
from ptq_cli.recipe.sections import ImageSettings, TextSettings
from tests.each_case import each_case
from tests.small_tokenizers import WORDS, save_tokenizers
from tests.unit.calibdata.conftest import npy, tar_bytes

SELECTIONS = [
    Selection(Shard(1, 3)),
    Selection(Shard(3, 3)),
    Selection(Shard(2, 2), done=1),
    Selection(done=2),
    Selection(Shard(7, 9)),
]
IDS = [f"{item.shard} after {item.done}" for item in SELECTIONS]


@pytest.mark.parametrize(("text", "number", "count"), [("1/1", 1, 1), ("2/8", 2, 8), ("08/8", 8, 8)])
def test_a_shard_is_read(text, number, count):
    assert parse_shard(text) == Shard(number, count)


@each_case(
    "text, says",
    [
        ("0/8", "there is no shard '0/8': 8 shards are numbered from 1 to 8"),
        ("9/8", "there is no shard '9/8': 8 shards are numbered from 1 to 8"),
        ("2/0", "there is no shard '2/0': the number of shards must be at least 1"),
        ("0/0", "there is no shard '0/0': the number of shards must be at least 1"),
        *[
            (text, f"--shard '{text}' is not of the form K/N")
            for text in ("a/b", "", "/", "2", "2/", "-1/8", "1/8/9", " 1/8", "1.0/8", "٢/٨", "1/" + "9" * 12)
        ],
    ],
)
def test_a_shard_that_is_none(text, says):
    with pytest.raises(UsageError) as caught:
        parse_shard(text)
    assert caught.value.message == says
    assert caught.value.hint == "--shard 2/8 is the second of eight"


@given(count=st.integers(1, 12), number=st.integers(0, 10**6))
def test_every_batch_belongs_to_one_shard(count, number):
    shards = [Selection(Shard(shard, count)) for shard in range(1, count + 1)]
    assert [number in shard for shard in shards].count(True) == 1


@given(
    total=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    count=st.integers(1, 7),
    done=st.integers(0, 4),
    data=st.data(),
)
def test_samples_are_those_of_the_batches(total, batch_size, count, done, data):
    shard = Shard(data.draw(st.integers(1, count)), count)
    selection = Selection(shard, done)
    sizes = [min(batch_size, total - start) for start in range(0, total, batch_size)]
    expected = sum(size for number, size in enumerate(sizes) if number in selection)
    assert selection.samples(total, batch_size) == expected


def as_lists(batches):
    return [
        (
            batch.names,
            {name: array.tolist() for name, array in batch.inputs.items()},
            None if batch.labels is None else batch.labels.tolist(),
        )
        for batch in batches
    ]


SOURCES = [
    "stored.npz",
    "packed.npz",
    "x.npy",
    "data.py:batches",
    "x.tar",
    "t-{0..1}.tar",
    "x.parquet",
    "p-{0..1}.parquet",
    "story.txt",
]


@pytest.fixture(scope="module")
def every_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same samples in each of the forms."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(3)
    arrays = {"a": rng.normal(size=(23, 2)).astype(np.float32), "label": np.arange(23)}
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    np.save(folder / "x.npy", arrays["a"])
    (folder / "data.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    buffer = np.zeros((5, 1))\n"
        "    for start in range(0, 35, 5):\n"
        "        buffer[:, 0] = np.arange(start, start + 5)\n"
        "        yield {'x': buffer, 'label': buffer[:, 0].astype(int)}\n"
    )
    samples = [
        (f"{row}.{name}.npy", npy(values[row])) for row in range(23) for name, values in arrays.items()
    ]
    (folder / "x.tar").write_bytes(tar_bytes(samples))
    (folder / "t-0.tar").write_bytes(tar_bytes(samples[:14]))
    (folder / "t-1.tar").write_bytes(tar_bytes(samples[14:], "w:gz"))
    table = pa.table({"a": arrays["a"].tolist(), "label": arrays["label"]})
    pq.write_table(table, folder / "x.parquet", row_group_size=5)
    pq.write_table(table[:8], folder / "p-0.parquet", row_group_size=5)
    pq.write_table(table[8:], folder / "p-1.parquet")
    (folder / "story.txt").write_text(" ".join(WORDS * 5))
    save_tokenizers(folder)
    return folder


@each_case("source", SOURCES)
@each_case("batch_size", [1, 3, 4, 50])
@each_case("selection", SELECTIONS, ids=IDS)
def test_the_batches_of_a_selection_are_those_of_the_whole(every_source, source, batch_size, selection):
    text = TextSettings(tokenizer=str(every_source / "words.json"), window=3)
    dataset = open_dataset(str(every_source / source), ImageSettings(), text, samples=21)
    whole = as_lists(dataset.batches(batch_size))
    assert as_lists(dataset.batches(batch_size, EVERY_BATCH)) == whole
    wanted = [batch for number, batch in enumerate(whole) if number in selection]
    assert as_lists(dataset.batches(batch_size, selection)) == wanted


def test_images_that_are_not_selected_are_not_opened(save_images):
    folder = save_images({f"{index}.png": 10 * index for index in range(8)})
    for damaged in (2, 3, 6, 7):
        (Path(folder) / f"{damaged}.png").write_bytes(b"no image")
    dataset = open_dataset(folder, ImageSettings(layout="NHWC"))
    found = list(dataset.batches(2, Selection(Shard(1, 2))))
    assert [batch.names for batch in found] == [("0.png", "1.png"), ("4.png", "5.png")]
    assert [round(float(batch.inputs[""].max()) * 255) for batch in found] == [10, 50]


def test_rows_that_are_not_selected_are_not_read(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((100, 10), np.float64))
    dataset = open_dataset(str(tmp_path / "x.npy"), ImageSettings())
    read = []

    def noting(stream, header, rows, where):
        read.append(stream.tell())
        return read_rows(stream, header, rows, where)

    monkeypatch.setattr("ptq_cli.calibdata.array_files.read_rows", noting)
    list(dataset.batches(10, Selection(Shard(4, 5))))
    assert [(position - 128) // 80 for position in read] == [30, 80]


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


def test_source_may_reuse_its_array():
    buffer = np.zeros((3, 1))

    def reusing():
        for value in (1, 2):
            buffer[:] = value
            yield Batch({"x": buffer}, None, ("a",) * 3)

    found = [batch.inputs["x"].ravel().tolist() for batch in rebatch(reusing(), 2)]
    assert found == [[1, 1], [1, 2], [2, 2]]


@pytest.mark.parametrize("samples", [0, -1])
def test_limit_below_one_is_refused(samples):
    with pytest.raises(RecipeValueError, match=f"samples must be at least 1, got {samples}"):
        require_samples(samples)


def test_batch_size_is_checked_before_the_first_batch(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    with pytest.raises(RecipeValueError, match="batch_size must be at least 1, got 0"):
        NpyDataset(str(tmp_path / "x.npy")).batches(0)


@each_case("dtype", ["uint8", "int32", "int64", "uint64"])
def test_labels_become_int64(dtype):
    labels = as_labels(np.array([1, 2], dtype), 2, "it")
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(2,), (2, 3, 3)], ids=["targets", "maps"])
def test_targets_keep_their_dtype_and_shape(shape):
    labels = as_labels(np.full(shape, 0.5, np.float32), 2, "it")
    assert (labels.dtype, labels.shape) == (np.float32, shape)
    assert not is_class_index(labels)


def test_a_target_that_is_not_finite():
    with pytest.raises(LabelError, match="it holds NaN or Inf"):
        as_labels(np.array([1.0, np.nan]), 2, "it")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.array(["a"]), "it has dtype <U1, expected numbers"),
        (np.array(4), r"it has shape \[\], expected one label per sample: \[1\]"),
    ],
    ids=["text", "scalar"],
)
def test_labels_of_no_numbers_or_samples(label, message):
    with pytest.raises(LabelError, match=message):
        as_labels(label, 1, "it")


def test_label_above_int64():
    with pytest.raises(LabelError, match="it has label 18446744073709551615, which does not fit into int64"):
        as_labels(np.array([2**64 - 1], np.uint64), 1, "it")


def test_require_labels_says_what_needs_them(save_npz):
    dataset = NpzDataset(save_npz(x=np.zeros((1, 1))))
    with pytest.raises(LabelError, match=r"metric 'top1' needs labels, and '.*calib\.npz' has none") as error:
        require_labels(dataset, "metric 'top1'")
    assert "one folder for each class" in error.value.hint


def numbered(count, fail_at=None):
    for number in range(count):
        if number == fail_at:
            raise DamagedSampleError(f"image {number} is damaged")
        yield Batch({"": np.full(2, number)}, None, (f"{number}a", f"{number}b"))


@each_case("count", [0, 1, 2, 50])
def test_batches_come_in_order(count):
    assert [batch.names[0] for batch in decoded_ahead(numbered(20), count)] == [f"{n}a" for n in range(20)]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_error_comes_after_the_batches_before_it(count):
    seen = []
    with pytest.raises(DamagedSampleError, match="image 3 is damaged"):
        for batch in decoded_ahead(numbered(9, fail_at=3), count):
            seen.append(batch.names[0])
    assert seen == ["0a", "1a", "2a"]


def test_no_more_is_decoded_than_was_asked_for():
    made, gate = [], threading.Event()

    def source():
        for batch in numbered(10):
            made.append(batch.names[0])
            if len(made) == 4:  # One was read, two wait, and one is held until there is room.
                gate.set()
            yield batch

    with closing(decoded_ahead(source(), 2)) as batches:
        next(batches)
        assert gate.wait(10)
        assert len(made) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_reader_that_ends_early_ends_the_thread(error):
    closed = []

    def source():
        try:
            yield from numbered(1000)
        finally:
            closed.append(True)

    with pytest.raises(error), closing(decoded_ahead(source(), 1)) as batches:
        next(batches)
        raise error
    assert closed == [True]
    assert not [thread for thread in threading.enumerate() if thread.name == "decode"]


def test_nothing_stays_nothing():
    assert list(decoded_ahead(iter(()), 2)) == []


def test_a_source_that_waits_keeps_no_reader_that_ends():
    waiting, free = threading.Event(), threading.Event()

    def source():
        yield from numbered(1)
        waiting.set()
        free.wait(600)

    reader = decoded_ahead(source(), 2)
    next(reader)
    assert waiting.wait(60)
    reader.close()
    assert not free.is_set(), "it returned while the source still waited"
    free.set()


def decode_ahead_batch_of(array):
    return Batch({"x": array}, None, tuple(f"s{row}" for row in range(len(array))))


@each_case("dtype", ["float16", "float32", "float64"])
@each_case("value, text", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_first_value_is_named(dtype, value, text):
    array = np.zeros((3, 4, 5), dtype)
    array[1, 2, 3] = array[2, 0, 0] = value
    with pytest.raises(NonFiniteDataError, match=rf"input 'x' holds {text} at \[2, 3\] of sample 's1'"):
        require_finite(decode_ahead_batch_of(array))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_largest_values_are_finite(dtype):
    require_finite(decode_ahead_batch_of(np.full((4, 4), np.finfo(dtype).max, dtype)))


def test_every_input_is_checked():
    batch = Batch({"a": np.zeros(1, np.float32), "b": np.array([np.nan])}, None, ("s",))
    with pytest.raises(NonFiniteDataError, match="input 'b'"):
        require_finite(batch)

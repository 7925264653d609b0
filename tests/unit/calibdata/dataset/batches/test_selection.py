"""Shards of batches: each batch belongs to one, and what a shard leaves out is not read."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptq_cli.calibdata.array_files import read_rows
from ptq_cli.calibdata.dataset.batches import EVERY_BATCH, Selection, Shard, parse_shard
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import UsageError
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


def every_source(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(3)
    arrays = {"a": rng.normal(size=(23, 2)).astype(np.float32), "label": np.arange(23)}
    np.savez(tmp_path / "stored.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.save(tmp_path / "x.npy", arrays["a"])
    (tmp_path / "data.py").write_text(
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
    (tmp_path / "x.tar").write_bytes(tar_bytes(samples))
    (tmp_path / "t-0.tar").write_bytes(tar_bytes(samples[:14]))
    (tmp_path / "t-1.tar").write_bytes(tar_bytes(samples[14:], "w:gz"))
    table = pa.table({"a": arrays["a"].tolist(), "label": arrays["label"]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=5)
    pq.write_table(table[:8], tmp_path / "p-0.parquet", row_group_size=5)
    pq.write_table(table[8:], tmp_path / "p-1.parquet")
    (tmp_path / "story.txt").write_text(" ".join(WORDS * 5))
    save_tokenizers(tmp_path)
    return [str(tmp_path / name) for name in SOURCES]


@each_case("source", range(len(SOURCES)), ids=SOURCES)
@each_case("batch_size", [1, 3, 4, 50])
@each_case("selection", SELECTIONS, ids=IDS)
def test_the_batches_of_a_selection_are_those_of_the_whole(tmp_path, source, batch_size, selection):
    text = TextSettings(tokenizer=str(tmp_path / "words.json"), window=3)
    dataset = open_dataset(every_source(tmp_path)[source], ImageSettings(), text, samples=21)
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

"""Rows of Parquet files: what each column is, how rows become batches, and what is refused."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ptq_cli.calibdata import parquet_files
from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batches import Selection, Shard
from ptq_cli.calibdata.image_folder import ImageDataset
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.calibdata.parquet_files import ParquetDataset
from ptq_cli.core.errors import (
    DamagedSampleError,
    DataFormatError,
    DataNameError,
    DataShapeError,
    DataTypeError,
    EmptyDataError,
    LabelError,
    UsageError,
)
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.recipe.sections import ImageSettings
from tests.unit.calibdata.conftest import png

RAW = ImageSettings(scale=1.0)
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def open_parquet(path, settings=RAW, samples=None):
    dataset = open_dataset(path, settings, samples=samples)
    assert isinstance(dataset, ParquetDataset)
    return dataset


def pictures(values, kind=STRUCT):
    items = [png(value) for value in values]
    return pa.array(
        [{"bytes": item, "path": "0.png"} for item in items] if kind is STRUCT else items, type=kind
    )


def fixed(array):
    flat = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def lists(array, kind=pa.list_):
    value = pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        value = kind(value)
    return pa.array(array.tolist(), type=value)


FLOATS = np.arange(42, dtype=np.float32).reshape(7, 2, 3)

COLUMNS = {
    "numbers": (pa.array(np.arange(7, dtype=np.int16)), np.arange(7, dtype=np.int16), ()),
    "booleans": (pa.array([True, False] * 3 + [True]), np.array([True, False] * 3 + [True]), ()),
    "half floats": (pa.array(np.arange(7, dtype=np.float16)), np.arange(7, dtype=np.float16), ()),
    "lists": (lists(FLOATS), FLOATS, (None, None)),
    "large lists": (lists(FLOATS, pa.large_list), FLOATS, (None, None)),
    "fixed lists": (fixed(FLOATS), FLOATS, (2, 3)),
    "a tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(FLOATS), FLOATS, (2, 3)),
}


@pytest.mark.parametrize("batch_size", [1, 2, 4, 9])
@pytest.mark.parametrize(("column", "wanted", "shape"), COLUMNS.values(), ids=COLUMNS.keys())
def test_columns_become_arrays(save_parquet, column, wanted, shape, batch_size):
    dataset = open_parquet(save_parquet({"x": column, "text": ["a"] * 7}))
    batches = list(dataset.batches(batch_size))
    assert [batch.size for batch in batches] == [
        min(batch_size, 7 - start) for start in range(0, 7, batch_size)
    ]
    found = np.concatenate([batch.inputs["x"] for batch in batches])
    assert found.dtype == wanted.dtype == dataset.specs["x"].dtype
    assert np.array_equal(found, wanted)
    assert (dataset.count, dataset.specs["x"].shape, list(dataset.specs)) == (7, (None, *shape), ["x"])
    assert all(batch.inputs["x"].flags.writeable for batch in batches)
    assert batches[-1].names[-1] == "train.parquet[6]"


@pytest.mark.parametrize("kind", [STRUCT, pa.binary(), pa.large_binary()], ids=str)
def test_images_are_as_those_of_a_folder(save_parquet, save_images, kind, tmp_path):
    settings = ImageSettings(resize=[6], crop=[5, 4], mean=[0.1, 0.2, 0.3], std=[0.5], mode="BGR")
    folder = save_images({f"{index}.png": 9 * index for index in range(5)}, size=(8, 9))
    contents = [path.read_bytes() for path in sorted((tmp_path / "images").iterdir())]
    if kind is STRUCT:
        contents = [{"bytes": content, "path": None} for content in contents]
    dataset = open_parquet(save_parquet({"image": pa.array(contents, type=kind)}), settings)
    assert dataset.specs["image"].shape == (None, 3, 5, 4)
    for found, wanted in zip(dataset.batches(3), ImageDataset(folder, settings).batches(3), strict=True):
        assert found.inputs["image"].tobytes() == wanted.inputs[""].tobytes()


IMAGE = TensorSpec("input", np.dtype("float32"), (None, 3, 4, 4))


@pytest.mark.parametrize(
    "columns",
    [
        {"image": pictures([1, 2])},
        {"img": pictures([1, 2]), "label": [0, 1], "index": [5, 6], "boxes": [[1.0], [2.0, 3.0]]},
        {"input": pictures([1, 2]), "other": pictures([3, 4])},
    ],
    ids=["one column", "one of images", "by name"],
)
def test_which_column_a_model_with_one_input_takes(save_parquet, columns):
    bound = bind_inputs(open_parquet(save_parquet(columns)), [IMAGE])
    (batch,) = bound.batches(2)
    assert batch.inputs["input"][:, 0, 0, 0].tolist() == [1, 2]
    assert list(batch.inputs) == ["input"]


def test_which_column_is_not_guessed(save_parquet):
    dataset = open_parquet(save_parquet({"a": pictures([1]), "b": pictures([2])}))
    with pytest.raises(DataNameError, match=r"no array for input 'input' in .*, found 'a', 'b'"):
        bind_inputs(dataset, [IMAGE])


@pytest.fixture
def groups_read(monkeypatch):
    """The row groups and the columns that are read, in their order."""
    read = []
    read_group = parquet_files.read_group

    def noting(part, group, columns, batch_size):
        read.append((group, [column.read for column in columns]))
        return read_group(part, group, columns, batch_size)

    monkeypatch.setattr(parquet_files, "read_group", noting)
    return read


def test_columns_that_are_no_input_are_not_read(save_parquet, groups_read):
    dataset = open_parquet(save_parquet({"x": FLOATS[:, 0, 0], "y": FLOATS[:, 0, 1], "label": [1] * 7}))
    list(bind_inputs(dataset, [TensorSpec("x", np.dtype("float32"), (None,))]).batches(9))
    assert groups_read == [(group, ["x", "label"]) for group in range(3)]


def test_parts_are_read_in_the_order_of_their_names(save_parquet, tmp_path):
    (tmp_path / "data").mkdir()
    for part in (2, 0, 1):
        save_parquet({"x": np.arange(5 * part, 5 * part + 5)}, name=f"data/part-{part}.parquet", rows=2)
    (tmp_path / "data/_SUCCESS").touch()
    folder = open_parquet(str(tmp_path / "data"))
    pattern = open_parquet(str(tmp_path / "data/part-{0..2}.parquet"))
    batches = list(folder.batches(4))
    assert np.concatenate([batch.inputs["x"] for batch in batches]).tolist() == list(range(15))
    assert [batch.size for batch in batches] == [4, 4, 4, 3]
    assert batches[1].names == ("part-0.parquet[4]", *(f"part-1.parquet[{row}]" for row in range(3)))
    assert (folder.count, folder.digest()) == (15, pattern.digest())


def test_an_empty_part_is_passed_over(save_parquet, tmp_path):
    save_parquet({"x": pa.array([], pa.int64())}, name="p-0.parquet")
    save_parquet({"x": [1, 2]}, name="p-1.parquet")
    (batch,) = open_parquet(str(tmp_path / "p-{0..1}.parquet")).batches(9)
    assert batch.inputs["x"].tolist() == [1, 2]


def test_row_groups_that_are_not_selected_are_not_read(save_parquet, groups_read):
    dataset = open_parquet(save_parquet({"x": np.arange(40)}, rows=5))
    found = [batch.inputs["x"].tolist() for batch in dataset.batches(4, Selection(Shard(1, 3), done=1))]
    assert found == [[12, 13, 14, 15], [24, 25, 26, 27], [36, 37, 38, 39]]
    assert [group for group, _ in groups_read] == [2, 3, 4, 5, 7]


def test_lists_of_any_length_one_by_one(save_parquet):
    dataset = open_parquet(save_parquet({"x": [[1], [2, 3], [4, 5, 6]]}))
    assert [batch.inputs["x"].shape for batch in dataset.batches(1)] == [(1, 1), (1, 2), (1, 3)]


BAD = {
    "lists of two lengths": (
        {"x": [[1, 2], [1, 2], [3]]},
        DataShapeError,
        r"column 'x' of train\.parquet\[2\] has length 1, but rows before it in the same batch have 2",
    ),
    "lists of two lengths in two row groups": (
        {"x": [[1, 2]] * 3 + [[3]] * 3},
        DataShapeError,
        r"column 'x' of train\.parquet\[3\] has length 1, but rows before it in the same batch have 2",
    ),
    "lists of two lengths inside": (
        {"x": [[[1, 2], [3, 4]], [[1, 2], [3]]]},
        DataShapeError,
        r"column 'x' of train\.parquet\[1\] has length 1, but rows before it in the same batch have 2",
    ),
    "empty lists": ({"x": pa.array([[], []], pa.list_(pa.int8()))}, EmptyDataError, r"column 'x' .* empty"),
    "a missing number": (
        {"x": [1, None, 3]},
        DataFormatError,
        r"column 'x' of train\.parquet\[1\] .* missing",
    ),
    "a missing list": (
        {"x": [[1], None]},
        DataFormatError,
        r"'x' of train\.parquet\[1\] has a missing value",
    ),
    "a missing value in a list": (
        {"x": [[1, 2], [3, None]]},
        DataFormatError,
        r"'x' of train\.parquet\[1\] has a missing value",
    ),
    "a missing image": (
        {"image": pa.array([None], STRUCT)},
        DataFormatError,
        r"column 'image' of train\.parquet\[0\] has a missing value",
    ),
    "an image that is but a path": (
        {"image": pa.array([{"bytes": None, "path": "/etc/passwd"}], STRUCT)},
        DataFormatError,
        r"image 'image' of train\.parquet\[0\] has no bytes, and ptq does not follow its path",
    ),
    "no image": (
        {"image": pa.array([b"text"])},
        DamagedSampleError,
        r"image 'image' of train\.parquet\[0\] cannot be decoded",
    ),
    "images of two sizes": (
        {"image": pa.array([png(1), png(1, (5, 4))])},
        DataShapeError,
        r"'train\.parquet\[0\]' is \[4, 4\], 'train\.parquet\[1\]' is \[4, 5\]",
    ),
    "a label of lists": ({"x": [1], "label": [[5]]}, LabelError, r"is list<element: int64>"),
    "two labels": ({"x": [1], "label": [1], "labels": [1]}, LabelError, r"has both 'label' and 'labels'"),
    "no row": ({"x": pa.array([], pa.int8())}, EmptyDataError, r"has no rows"),
    "no column of numbers": ({"x": ["text"]}, EmptyDataError, r"has no column of numbers or images"),
    "a label alone": ({"label": [1]}, EmptyDataError, r"has no column of numbers or images"),
}


@pytest.mark.parametrize(("columns", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_columns_are_refused(save_parquet, columns, error, message):
    path = save_parquet(columns)
    with pytest.raises(error, match=message) as caught:
        list(open_parquet(path).batches(8))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("where", ["footer", "pages"])
def test_truncated_files(save_parquet, where):
    path = Path(save_parquet({"x": np.random.default_rng(0).random(1000)}, rows=100))
    content = path.read_bytes()
    path.write_bytes(content[:-10] if where == "footer" else content[:100] + content[600:])
    with pytest.raises(DataFormatError, match=r"data '.*train\.parquet' is damaged"):
        list(open_parquet(str(path)).batches(8))


def test_two_columns_of_one_name(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataFormatError, match="has two columns named 'x'"):
        open_parquet(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    "column",
    [[list(range(1000))], pa.FixedSizeListArray.from_arrays(pa.array([1] * 1000), 1000)],
    ids=["of bytes", "of a type"],
)
def test_one_row_that_declares_gigabytes(tmp_path, monkeypatch, column):
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    monkeypatch.setattr(parquet_files, "MAX_SAMPLE_BYTES", 7999)
    with pytest.raises(DataFormatError, match=r"data '.*x\.parquet' declares samples of [89]\d\d\d bytes"):
        list(open_parquet(str(tmp_path / "x.parquet")).batches(1))


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        ({"y": [1]}, DataNameError, r"p-1\.parquet' has no column 'x', unlike '.*p-0\.parquet'"),
        (
            {"x": [1.0]},
            DataTypeError,
            r"column 'x' of data '.*p-1\.parquet' is double, but in .* it is int64",
        ),
        ({"x": ["1"]}, DataTypeError, r"is string"),
    ],
    ids=["missing", "another type", "text"],
)
def test_parts_that_differ(save_parquet, tmp_path, second, error, message):
    save_parquet({"x": [1]}, name="p-0.parquet")
    save_parquet(second, name="p-1.parquet")
    with pytest.raises(error, match=message):
        next(open_parquet(str(tmp_path / "p-{0..1}.parquet")).batches(1))


def test_without_pyarrow(save_parquet, monkeypatch):
    path = save_parquet({"x": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UsageError, match=r"is Parquet, and reading it needs pyarrow, which is not installed"
    ) as error:
        open_dataset(path, RAW)
    assert error.value.hint == "pip install 'ptq-cli[parquet]'"


def test_peak_memory_does_not_grow_with_the_samples(save_parquet, rng):
    # 16 KB a row that cannot be compressed: the one row group is 49 MB, a batch 0.5 MB.
    path = save_parquet({"x": fixed(rng.random((3000, 4096), dtype=np.float32))}, rows=3000)
    peaks, arrow = [], []
    for samples in (500, 3000):
        dataset = open_parquet(path, samples=samples)
        next(dataset.batches(1))
        tracemalloc.start()
        most = 0
        for batch in dataset.batches(32):
            del batch
            most = max(most, pa.total_allocated_bytes())
        arrow.append(most)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]
    assert arrow[1] < 1.05 * arrow[0]
    assert arrow[1] < 8e6

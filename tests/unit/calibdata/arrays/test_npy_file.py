import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset
from ptq_cli.core.errors import DataFormatError, InputFileError
from ptq_cli.core.read_files import sha256_file
from tests.each_case import each_case


@pytest.fixture
def path(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.normal(size=(7, 3)).astype(np.float32))
    return tmp_path / "x.npy"


def test_batches_are_the_rows_in_order(path):
    batches = list(NpyDataset(str(path)).batches(3))
    assert [batch.size for batch in batches] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate([batch.inputs[""] for batch in batches]), np.load(path))
    assert batches[1].names == ("x.npy[3]", "x.npy[4]", "x.npy[5]")
    assert batches[0].labels is None


@pytest.mark.parametrize(("samples", "count"), [(None, 7), (4, 4), (100, 7)])
def test_samples_limits_the_count(path, samples, count):
    dataset = NpyDataset(str(path), samples)
    assert dataset.count == sum(batch.size for batch in dataset.batches(3)) == count


def test_big_endian_becomes_native(tmp_path):
    values = np.arange(6, dtype=">f4").reshape(3, 2)
    np.save(tmp_path / "x.npy", values)
    dataset = NpyDataset(str(tmp_path / "x.npy"))
    (batch,) = dataset.batches(3)
    assert dataset.specs[""].dtype == batch.inputs[""].dtype == np.dtype("float32")
    np.testing.assert_array_equal(batch.inputs[""], values)


@each_case("dtype", ["bool", "uint8", "float16", "int64", "float64"])
def test_dtypes_pass_as_they_are(tmp_path, dtype):
    values = np.array([[0, 1], [1, 0]], dtype)
    np.save(tmp_path / "x.npy", values)
    (batch,) = NpyDataset(str(tmp_path / "x.npy")).batches(2)
    assert batch.inputs[""].dtype == dtype
    np.testing.assert_array_equal(batch.inputs[""], values)


def test_file_that_changed_is_noticed(path):
    dataset = NpyDataset(str(path))
    np.save(path, np.zeros((7, 4), np.float32))
    with pytest.raises(DataFormatError, match="changed since it was opened"):
        next(dataset.batches(1))


def test_file_that_vanished(path):
    dataset = NpyDataset(str(path))
    path.unlink()
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        next(dataset.batches(1))
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        dataset.digest()


def test_digest_is_of_the_bytes(path):
    assert NpyDataset(str(path)).digest() == NpyDataset(str(path), 2).digest() == sha256_file(path)

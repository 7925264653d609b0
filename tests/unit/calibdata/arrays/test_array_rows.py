import io
import tracemalloc

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpyDataset, NpzDataset, read_rows
from ptq_cli.calibdata.npy_header import ArrayHeader
from ptq_cli.core.errors import DataFormatError


def peak_of_iterating(dataset):
    for _ in dataset.batches(32):  # warm up: imports and caches are not the data's
        break
    tracemalloc.start()
    try:
        for batch in dataset.batches(32):
            del batch
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["npy", "stored", "compressed"])
def test_peak_memory_does_not_grow_with_the_samples(tmp_path, rng, kind):
    # 6 KB a sample: the whole of the larger set is 31 MB, a batch 0.2 MB.
    values = rng.integers(0, 255, size=(5000, 1536), dtype=np.uint8).astype(np.float32)
    peaks = []
    for count in (512, 5000):
        path = tmp_path / f"{count}"
        with path.open("wb") as stream:
            if kind == "npy":
                np.save(stream, values[:count])
            else:
                (np.savez if kind == "stored" else np.savez_compressed)(stream, x=values[:count])
        peaks.append(peak_of_iterating((NpyDataset if kind == "npy" else NpzDataset)(str(path))))
    assert peaks[1] < 1.05 * peaks[0]
    assert peaks[1] < 1e6


def test_rows_continue_where_the_last_ended():
    stream = io.BytesIO(np.arange(6, dtype=np.int32).tobytes())
    header = ArrayHeader(np.dtype("int32"), (6,), b"")
    assert read_rows(stream, header, 2, "it").tolist() == [0, 1]
    assert read_rows(stream, header, 4, "it").tolist() == [2, 3, 4, 5]


def test_stream_that_ends_early():
    header = ArrayHeader(np.dtype("int32"), (6,), b"")
    with pytest.raises(DataFormatError, match="it is truncated: found 6 bytes of a batch, expected 8"):
        read_rows(io.BytesIO(bytes(6)), header, 2, "it")


def test_rows_that_do_not_fit_in_memory():
    header = ArrayHeader(np.dtype("float32"), (2**40, 2**29), b"")
    with pytest.raises(DataFormatError, match="samples of 2147483648 bytes do not fit in memory") as error:
        read_rows(io.BytesIO(), header, 2**30, "it")
    assert error.value.hint == "lower batch_size"

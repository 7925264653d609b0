"""Whatever bytes stand in a data file: the right values, or an error that says what is wrong."""

import gzip
import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import PtqError
from ptq_cli.recipe.sections import ImageSettings
from tests.day import examples

RNG = np.random.default_rng(3)
X = RNG.normal(size=(6, 10)).astype(np.float32)
LABELS = np.arange(6)

FEW = settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


def archive(compressed):
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, x=X, label=LABELS)
    return stream.getvalue()


def array():
    stream = io.BytesIO()
    np.save(stream, X)
    return stream.getvalue()


def jpeg():
    stream = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def tar():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for index in range(6):
            member = io.BytesIO()
            np.save(member, X[index])
            for name, content in (("x.npy", member.getvalue()), ("cls", b"%d" % index)):
                info = tarfile.TarInfo(f"größe/{index}.{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def parquet():
    stream = io.BytesIO()
    columns = {
        "x": X.tolist(),
        "label": LABELS,
        "image": [jpeg()] * 6,
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 10),
    }
    pq.write_table(pa.table(columns), stream, row_group_size=4, write_page_checksum=True)
    return stream.getvalue()


TAR = {"plain": tar(), "gzip": gzip.compress(tar(), mtime=0)}
NPZ = {"stored": archive(False), "compressed": archive(True)}


@st.composite
def damaged(draw, content):
    """Flip a few bits, and perhaps cut the end off."""
    found = bytearray(content)
    for position in draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        found[position] ^= 1 << draw(st.integers(0, 7))
    return bytes(found[: draw(st.sampled_from([len(content)] * 3 + list(range(len(content)))))])


def read_all(path):
    batches = list(open_dataset(str(path), ImageSettings()).batches(4))
    names = list(batches[0].inputs)
    arrays = {name: np.concatenate([batch.inputs[name] for batch in batches]) for name in names}
    labels = None if batches[0].labels is None else np.concatenate([batch.labels for batch in batches])
    return arrays, labels


@pytest.mark.parametrize("kind", NPZ)
@FEW
@given(data=st.data())
def test_damaged_npz_is_refused_or_read_right(tmp_path, kind, data):
    path = tmp_path / "x.npz"
    path.write_bytes(data.draw(damaged(NPZ[kind])))
    try:
        arrays, labels = read_all(path)
    except PtqError:
        return
    # Only the names and comments of an archive are outside its checksums.
    for found in arrays.values():
        assert found.tobytes() in (X.tobytes(), LABELS.tobytes())
    assert labels is None or labels.tobytes() == LABELS.tobytes()


@FEW
@given(content=damaged(array()))
def test_damaged_npy_is_refused_or_has_all_bytes(tmp_path, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    try:
        arrays, _ = read_all(path)
    except PtqError:
        return
    # An npy has no checksum; what is read is at least the whole of what is there.
    assert sum(found.nbytes for found in arrays.values()) == X.nbytes


@FEW
@given(content=damaged(jpeg()))
def test_damaged_jpeg_is_refused_or_decoded(tmp_path, content):
    (tmp_path / "a.jpg").write_bytes(content)
    try:
        arrays, _ = read_all(tmp_path)
    except PtqError:
        return
    assert arrays[""].dtype == np.float32


@pytest.mark.parametrize("kind", TAR)
@FEW
@given(data=st.data())
def test_damaged_tar_is_refused_or_has_every_sample(tmp_path, kind, data):
    path = tmp_path / "x.tar"
    path.write_bytes(data.draw(damaged(TAR[kind])))
    try:
        batches = list(open_dataset(str(path), ImageSettings()).batches(4))
    except PtqError:
        return
    # Headers have a checksum and contents have none; what is never lost is a sample. A flipped extension
    # makes a member one that is passed over, which for the only array of a sample is an error.
    assert sum(batch.size for batch in batches) == 6
    if kind == "gzip":
        assert np.concatenate([batch.inputs["x"] for batch in batches]).tobytes() == X.tobytes()


@FEW
@given(content=damaged(parquet()))
def test_damaged_parquet_is_refused_or_has_every_row(tmp_path, content):
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    try:
        batches = list(open_dataset(str(path), ImageSettings()).batches(4))
    except PtqError:
        return
    assert sum(batch.size for batch in batches) == 6


@FEW
@given(content=st.binary(max_size=2000))
@pytest.mark.parametrize("magic", [b"PAR1", tar()[:1536], tar()[1024:1536], b"\x1f\x8b\x08\0"])
def test_arbitrary_shards_are_refused(tmp_path, magic, content):
    path = tmp_path / "x"
    path.write_bytes(magic + content)
    with pytest.raises(PtqError):
        read_all(path)

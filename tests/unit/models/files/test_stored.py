"""Places of external data that cannot be, and who else names them.

Models as their files hold them: one file, or a graph with its large constants beside it.
"""

import gc
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import ModelFormatError, OutputFileError
from ptq_cli.core.files import write_together
from ptq_cli.core.tensors import Array
from ptq_cli.models.files import stored, storing
from ptq_cli.models.files.mapped_constants import data_path, mapped
from ptq_cli.models.files.stored import read_model, read_parsed
from ptq_cli.models.files.storing import release, store_model
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.preparing.fold_known import fold_lazily
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.runtime.session import Session
from tests.each_case import each_case
from tests.large_models import write_large
from tests.unit.models.contents import noise, weighted

PLACES = {
    "beyond the end": ({"offset": "1000"}, "too short"),
    "a negative offset": ({"offset": "-4"}, "is not valid"),
    "no number": ({"offset": "many"}, "is not valid"),
    "another length": ({"length": "4"}, "is not valid"),
    "a huge length": ({"length": str(2**70)}, "is not valid"),
    "an offset of many digits": ({"offset": "9" * 5000}, "is not valid"),
    "an offset with a sign": ({"offset": "+0"}, "is not valid"),
    "a length in other digits": ({"length": "\uff12\uff15\uff16"}, "is not valid"),
    "a name of a NUL": ({"location": "\0"}, r"has a name that is not valid \('\\x00'\)"),
    "a name with a NUL": ({"location": "m.onnx.data\0"}, "has a name that is not valid"),
    "a name with a line end": ({"location": "m.onnx.data\n"}, "is missing"),
    "a name that is too long": ({"location": "n" * 5000}, "has a name that is not valid"),
}


@each_case("place, message", PLACES.values(), ids=PLACES.keys())
def test_a_place_that_is_not_there_is_refused(tmp_path: Path, place: dict[str, str], message: str) -> None:
    write_large(tmp_path / "m.onnx", width=8, layers=2)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for entry in proto.graph.initializer[
        -2 if not proto.graph.initializer[-1].external_data else -1
    ].external_data:
        entry.value = place.get(entry.key, entry.value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for read in (load_onnx, read_model):
        with pytest.raises(ModelFormatError, match=message):
            read(tmp_path / "m.onnx")


def test_a_shape_of_very_many_axes_is_refused(tmp_path: Path) -> None:
    write_large(tmp_path / "m.onnx", width=8, layers=2)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    tensor = next(item for item in proto.graph.initializer if item.external_data)
    tensor.dims[:] = [2**62] * 300
    for entry in [item for item in tensor.external_data if item.key == "length"]:
        tensor.external_data.remove(entry)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for read in (load_onnx, read_model):
        with pytest.raises(ModelFormatError, match="is not valid"):
            read(tmp_path / "m.onnx")


@pytest.mark.parametrize("damage", [b"\xed\xa0\x80", b"\xff"], ids=["a surrogate", "no UTF-8"])
def test_names_that_are_not_text_are_refused_of_a_run_too(tmp_path: Path, damage: bytes) -> None:
    proto = ir.to_proto(weighted())
    proto.metadata_props.add(key="k", value="DAMAGED")
    content = proto.SerializeToString().replace(b"DAMAGED", damage.ljust(7))
    (tmp_path / "m.onnx").write_bytes(content)
    for read in (load_onnx, read_model):
        with pytest.raises(ModelFormatError, match=r"'m\.onnx' is damaged: a name in it is not text"):
            read(tmp_path / "m.onnx")


def test_a_second_name_of_the_data_is_refused(tmp_path: Path) -> None:
    write_large(tmp_path / "m.onnx", width=8, layers=2)
    (tmp_path / "other").hardlink_to(tmp_path / "m.onnx.data")
    for read in (load_onnx, read_model):
        with pytest.raises(ModelFormatError, match=r"'m\.onnx\.data' has several names"):
            read(tmp_path / "m.onnx")


def test_a_graph_that_is_read_to_be_loaded_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(store_model(weighted(), tmp_path, "m.onnx").content)
    parse, parsed = onnx.load_model_from_string, []

    def counted(content: bytes) -> onnx.ModelProto:
        parsed.append(len(content))
        return parse(content)

    monkeypatch.setattr(stored.onnx, "load_model_from_string", counted)
    found, message = read_parsed(path)
    first = found.load(message)
    assert len(parsed) == 1
    again = found.load()
    assert len(parsed) == 2
    assert ir.to_proto(first) == ir.to_proto(again) == ir.to_proto(read_model(path).load())


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "LARGEST_BYTES", 1000)


def test_a_small_model_is_one_file_with_all_in_it(tmp_path: Path) -> None:
    found = store_model(weighted(), tmp_path, "m.onnx")
    assert (found.data, found.folder) == ((), None)
    assert found.content == ir.to_proto(weighted()).SerializeToString(deterministic=True)
    assert found.files(tmp_path / "m.onnx") == {tmp_path / "m.onnx": found.content}
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("low_limit")
def test_a_large_model_keeps_its_weights_beside_it(tmp_path: Path) -> None:
    graph = weighted()
    found = store_model(graph, tmp_path, "m.onnx")
    kept = {
        name: type(item.const_value) is ir.ExternalTensor for name, item in graph.graph.initializers.items()
    }
    assert kept == {"b": False, "w": True}
    assert found.size == len(found.content) + 64 * 64 * 4
    x = noise(3, 64)
    before, digest = Session(found).run({"x": x})[0], found.sha256
    write_together(found.files(tmp_path / "m.onnx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert data_path(tmp_path / "m.onnx").read_bytes() == noise(64, 64).tobytes()
    again = read_model(tmp_path / "m.onnx")
    assert again.sha256 == digest
    np.testing.assert_array_equal(Session(again).run({"x": x})[0], before)
    np.testing.assert_allclose(before, x @ noise(64, 64) + 0.5, atol=1e-4)


@pytest.mark.usefixtures("low_limit")
def test_data_are_not_written_through_a_link_as_onnx_would_not_read_them(tmp_path: Path) -> None:
    (tmp_path / "m.onnx.data").symlink_to("elsewhere")
    found = store_model(weighted(), tmp_path, "m.onnx")
    with pytest.raises(OutputFileError, match=r"cannot write '.*m.onnx.data': it is a symbolic link"):
        found.files(tmp_path / "m.onnx")


@pytest.mark.usefixtures("low_limit")
def test_what_is_not_moved_to_its_place_goes(tmp_path: Path) -> None:
    found = store_model(weighted(), tmp_path, "m.onnx")
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    del found
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_the_hash_sees_every_byte_of_both_files(tmp_path: Path) -> None:
    write_large(tmp_path / "m.onnx", width=8, layers=2)
    hashes = {read_model(tmp_path / "m.onnx").sha256}
    data = tmp_path / "m.onnx.data"
    content = data.read_bytes()
    for changed in (content[:-1] + b"\x00", b"\x00" + content[1:]):
        data.write_bytes(changed)
        hashes.add(read_model(tmp_path / "m.onnx").sha256)
    assert len(hashes) == 3


@pytest.mark.usefixtures("low_limit")
def test_constants_are_mapped_while_they_are_looked_at(tmp_path: Path) -> None:
    graph = weighted()
    keeper = store_model(graph, tmp_path, "m.onnx")
    value = graph.graph.initializers["w"]
    with mapped(value) as array:
        assert value.const_value.raw is not None
        assert array.shape == (64, 64)
    del array
    assert value.const_value.raw is None
    view = value.const_value.numpy()
    release(graph)  # somebody still looks at it
    np.testing.assert_array_equal(view, noise(64, 64))
    assert keeper.data


TIED = """<ir_version: 8, opset_import: ["" : 17]> g (int64[N] ids) => (float[N,128] y) {
    rows = Gather(table, ids)
    y = MatMul(rows, head) }"""


def tied(head: Array) -> ir.Model:
    parsed = onnx.parser.parse_model(TIED)
    for name, array in (("table", noise(128, 64)), ("head", np.ascontiguousarray(head))):
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(parsed)


@pytest.mark.parametrize("largest", [1000, storing.LARGEST_BYTES], ids=["in two files", "in one file"])
def test_a_table_that_is_a_turned_weight_too_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(storing, "LARGEST_BYTES", largest)
    plain, size, ids = tied(noise(128, 64).T), 128 * 64 * 4, {"ids": np.arange(128)}
    expected = Session(ir.to_proto(plain).SerializeToString()).run(ids)[0]
    found = store_model(plain, tmp_path, "m.onnx")
    assert size < (written := found.size) < 1.2 * size
    np.testing.assert_array_equal(Session(found).run(ids)[0], expected)
    write_together(found.files(tmp_path / "m.onnx"))
    for graph in (read_model(tmp_path / "m.onnx").load(), load_onnx(tmp_path / "m.onnx")):
        assert [node.op_type for node in graph.graph] == ["Gather", "MatMul"]
        np.testing.assert_array_equal(graph.graph.initializers["head"].const_value.numpy(), noise(128, 64).T)
        assert store_model(graph, tmp_path, "again.onnx").size == pytest.approx(written, rel=0.01)


def opened(path: Path) -> ir.Model:
    return load_onnx(path)


def test_preparation_of_a_large_model_reads_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_large(tmp_path / "m.onnx", width=128, layers=4)
    monkeypatch.setattr(storing, "LARGEST_BYTES", 100_000)
    source = opened(tmp_path / "m.onnx")
    read = []
    numpy = ir.ExternalTensor.numpy
    monkeypatch.setattr(ir.ExternalTensor, "numpy", lambda self: read.append(self.name) or numpy(self))
    graph = prepare(source, "m.onnx")
    assert read == []
    assert "Transpose" not in {node.op_type for node in graph.graph}
    x = noise(2, 128)
    expected = Session(tmp_path / "m.onnx").run({"x": x})[0]
    np.testing.assert_allclose(
        Session(store_model(graph, tmp_path, "p.onnx")).run({"x": x})[0], expected, rtol=1e-4, atol=1e-5
    )


MOVES = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,N] x) => (float[2,M] y)
    <float[2,24] w, int64[3] sizes = {0, 4, -1}> {
    a = Identity(w)
    b = Reshape(a, sizes)
    c = Transpose<perm = [0, 2, 1]>(b)
    d = Cast<to = 10>(c)
    e = Cast<to = 1>(d)
    f = Flatten(e)
    y = Concat<axis = 1>(x, f) }"""


def test_what_moves_a_constant_on_disk_is_folded_into_what_numpy_says(tmp_path: Path) -> None:
    parsed = onnx.parser.parse_model(MOVES)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(noise(2, 24), "w"))
    onnx.save(parsed, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    graph = ir.load(tmp_path / "m.onnx")
    ir.external_data.load_to_model(graph)
    original = Session(ir.to_proto(graph).SerializeToString()).run({"x": noise(2, 3)})[0]
    graph = ir.load(tmp_path / "m.onnx")
    sizes = graph.graph.initializers["sizes"]
    sizes.const_value = ir.tensor(sizes.const_value.numpy().copy(), name="sizes")
    assert fold_lazily(graph) == 5
    assert [node.op_type for node in graph.graph] == ["Flatten", "Concat"]
    folded = graph.graph.initializers["e"].const_value
    expected = noise(2, 24).reshape(2, 4, 6).transpose(0, 2, 1).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(folded.numpy(), expected)
    found = Session(ir.to_proto(graph).SerializeToString()).run({"x": noise(2, 3)})[0]
    np.testing.assert_array_equal(found, original)

"""Constants that stay on disk: how they are moved, and those of one large file, which wait to be mapped."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import PtqError
from ptq_cli.core.files import write_together
from ptq_cli.models.files import stored, storing
from ptq_cli.models.files.mapped_constants import ConstantsFile, moved_tensor
from ptq_cli.models.files.stored import serialize
from ptq_cli.models.files.storing import store_mapped, store_model
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.runtime.session import Session
from tests.unit.models.contents import noise, weighted


def test_a_scalar_stays_a_scalar():
    widened = moved_tensor(ir.tensor(np.float16(1.5)), lambda array: array.astype(np.float32), "offset")
    assert widened.shape == ()
    assert widened.numpy() == np.float32(1.5)


@pytest.fixture
def wait_early(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stored, storing):
        monkeypatch.setattr(module, "SMALLEST_MAPPED", 1000)


@pytest.mark.usefixtures("wait_early")
def test_constants_that_wait_are_written_as_if_they_had_been_in_memory(tmp_path: Path) -> None:
    graph, whole = weighted(), store_model(weighted(), tmp_path, "m.onnx")
    found = store_mapped(graph, tmp_path, "m.onnx")
    assert type(graph.graph.initializers["w"].const_value) is ir.ExternalTensor
    assert (found.is_apart, storing.is_large(graph), len(found.content) < 2000) == (False, False, True)
    assert (found.size, found.sha256, found.message) == (whole.size, whole.sha256, whole.content)
    x = noise(3, 64)
    np.testing.assert_array_equal(Session(found).run({"x": x})[0], Session(whole).run({"x": x})[0])
    write_together(found.files(tmp_path / "m.onnx"))
    del found, graph
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == whole.content


@pytest.mark.usefixtures("wait_early")
def test_a_large_file_is_loaded_with_its_constants_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(store_model(weighted(), tmp_path, "m.onnx").content)
    found = load_onnx(path)
    tensor = found.graph.initializers["w"].const_value
    assert type(tensor) is ir.Tensor
    assert not tensor.numpy().flags.owndata
    monkeypatch.setattr(stored, "SMALLEST_MAPPED", 1 << 20)
    assert ir.to_proto(found).SerializeToString() == ir.to_proto(load_onnx(path)).SerializeToString()


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: content.replace(b"w", b"\xff")]
)
@pytest.mark.usefixtures("wait_early")
def test_a_damaged_large_file_is_refused_as_a_small_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    path, said = tmp_path / "m.onnx", []
    path.write_bytes(damage(store_model(weighted(), tmp_path, "m.onnx").content))
    for limit in (1000, 1 << 20):
        monkeypatch.setattr(stored, "SMALLEST_MAPPED", limit)
        with pytest.raises(PtqError) as error:
            load_onnx(path)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.usefixtures("wait_early")
def test_a_weight_of_a_table_on_disk_is_a_transpose_of_it(tmp_path: Path) -> None:
    file, graph = ConstantsFile(tmp_path, "m.onnx"), weighted()
    table = file.add(ir.tensor(noise(64, 64)), "table")
    graph.graph.initializers["w"].const_value = moved_tensor(table, np.transpose, "w")
    found = serialize(graph)
    assert len(found.content) < 2000
    np.testing.assert_array_equal(found.load().graph.initializers["w"].const_value.numpy(), noise(64, 64).T)
    x = noise(3, 64)
    whole = store_model(graph, tmp_path, "m.onnx")
    assert (whole.data, len(whole.content) > 64 * 64 * 4) == ((), True)
    np.testing.assert_array_equal(Session(found).run({"x": x})[0], Session(whole).run({"x": x})[0])

"""Places of external data that cannot be, and who else names them."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ptq_cli.core.errors import ModelFormatError
from ptq_cli.models.files import stored
from ptq_cli.models.files.stored import read_model, read_parsed
from ptq_cli.models.files.storing import store_model
from ptq_cli.models.loading.onnx_source import load_onnx
from tests.each_case import each_case
from tests.large_models import write_large
from tests.unit.models.contents import weighted

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

"""Every string of an ONNX file, one after the other, is replaced by one that nobody expects there.

Each command ends with a result or with the code of an error, and changes no file but its output.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto

from ptq_cli.qdq.metadata import OVERRIDES
from tests.e2e.conftest import Ptq, folder, make_onnx, make_weights, ptq, snapshot, template

__all__ = ["folder", "ptq", "template"]

HOSTILE = {
    "NUL": b"\0",
    "surrogate": b"\xed\xa0\x80",
    "no UTF-8": b"\xff\xfe",
    "line ends": b"a\r\nb",
    "terminal codes": b"\x1b[31mred",
    "very long": b"m" * 200_000,
    "empty": b"",
    "parent folder": b"../..",
    "absolute path": b"/etc/passwd",
    "right to left": "\u202eabc".encode(),
    "template": b"%s{0}{x}",
    "markup": b"</script><b>",
}
BY_DAY = ("NUL", "surrogate", "very long")
PLACEHOLDER = "PLACE_OF_WHAT_IS_HOSTILE"
SOURCE = ["inspect bad.onnx", "prepare bad.onnx -o out.onnx", "calibrate bad.onnx --data calib.npz --run out"]
QUANTIZED = ["inspect bad.onnx", "verify bad.onnx", "evaluate bad.onnx --run run"]
WRITTEN = ("out.onnx", "out", "run")
LONGEST_ERROR = 20_000
Put = Callable[[str], None]


def places(message: Message) -> Iterator[tuple[str, Put]]:
    """Yield each string of a message, those of the messages in it too: its name, and how it is replaced."""
    for field, value in message.ListFields():
        items = [value] if isinstance(value, str | bytes | Message | int | float) else value
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in items:
                yield from places(item)
        elif field.type == FieldDescriptor.TYPE_STRING:
            name = f"{type(message).__name__}.{field.name}"
            if isinstance(message, onnx.StringStringEntryProto) and field.name == "value":
                name = f"{name} of {message.key}"
            for index in range(len(items)):
                yield name, _putter(message, field.name, None if items is not value else index)


def _putter(message: Message, name: str, index: int | None) -> Put:
    def put(text: str) -> None:
        if index is None:
            setattr(message, name, text)
        else:
            getattr(message, name)[index] = text

    return put


def hostile_files(model: onnx.ModelProto, hostile: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the file with one string replaced, for the first string of each name."""
    seen = set()
    for index, (name, _) in enumerate(places(model)):
        if name not in seen:
            seen.add(name)
            edited = onnx.ModelProto()
            edited.CopyFrom(model)
            _, put = list(places(edited))[index]
            yield name, replaced(edited, put, hostile)


def replaced(model: onnx.ModelProto, put: Put, hostile: bytes) -> bytes:
    """Return the file with these bytes as a string, those too that protobuf does not write."""
    try:
        put(hostile.decode())
    except UnicodeDecodeError:
        put(PLACEHOLDER)
    # As long as the placeholder, so that no length around it changes.
    padded = hostile + PLACEHOLDER[len(hostile) :].encode()
    return model.SerializeToString().replace(PLACEHOLDER.encode(), padded)


def with_every_string(folder: Path) -> onnx.ModelProto:
    """Return a model with data outside the file, and with every string that ONNX files have."""
    model = make_onnx(make_weights())
    model.producer_name, model.producer_version, model.domain = "producer", "1", "domain"
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "text"
    model.metadata_props.add(key="key", value="value")
    model.opset_import.add(domain="my.company", version=1)
    model.graph.value_info.add(name="conv").type.tensor_type.elem_type = TensorProto.FLOAT
    weight = model.graph.initializer[0]
    weight.doc_string = "text"
    (folder / "weights.bin").write_bytes(weight.raw_data)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(len(weight.raw_data)))):
        weight.external_data.add(key=key, value=value)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    return model


def require_codes(ptq: Ptq, folder: Path, model: onnx.ModelProto, hostile: bytes, words: list[str]) -> int:
    """Run the commands on each hostile file, and return on how many."""
    count = 0
    for name, content in hostile_files(model, hostile):
        (folder / "bad.onnx").write_bytes(content)
        before = snapshot(folder)
        shutil.copytree(folder / "ptq-run", folder / "run")
        for line in words:
            outcome = ptq(line)
            assert outcome.status in (0, 2), f"{name}: {line}: {outcome.err[-500:]}"
            assert "Traceback" not in outcome.err, f"{name}: {line}"
            assert not set("\0\r\x1b") & set(outcome.out + outcome.err), f"{name}: {line}"
            if outcome.status == 2:
                assert outcome.err.startswith("error PTQ-"), f"{name}: {line}: {outcome.err[-500:]}"
                assert len(outcome.err) < LONGEST_ERROR, f"{name}: {line}"
        for path in WRITTEN:
            shutil.rmtree(folder / path, ignore_errors=True)
            (folder / path).unlink(missing_ok=True)
        assert snapshot(folder) == before, name
        count += 1
    return count


KINDS = [
    pytest.param(kind, marks=[] if kind in BY_DAY else [pytest.mark.nightly], id=kind) for kind in HOSTILE
]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_strings_in_a_model(folder: Path, ptq: Ptq, kind: str) -> None:
    assert require_codes(ptq, folder, with_every_string(folder), HOSTILE[kind], SOURCE) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_strings_in_a_quantized_model(folder: Path, ptq: Ptq, kind: str) -> None:
    assert ptq("export --amax percentile").status == 0
    model = onnx.load(folder / "ptq-run" / "model.int8.onnx")
    model.metadata_props.add(key=OVERRIDES, value="[]")
    assert require_codes(ptq, folder, model, HOSTILE[kind], QUANTIZED) > 15

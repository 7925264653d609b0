"""Every string of an ONNX file, one after the other, is replaced by one that nobody expects there.

Each command ends with a result or with the code of an error, and changes no file but its output.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from ptq_cli.qdq.read.quantized_file import MetadataKey
from tests.e2e.conftest import Ptq, folder, make_onnx, make_weights, ptq, snapshot, template
from tests.properties.fuzz.hostile_texts import HOSTILE, places, replaced

__all__ = ["folder", "ptq", "template"]

BY_DAY = ("NUL", "surrogate")
SOURCE = [
    "inspect bad.onnx",
    "export --float bad.onnx -o out.onnx",
    "calibrate bad.onnx --data calib.npz --run out",
]
QUANTIZED = ["inspect bad.onnx", "verify bad.onnx", "evaluate bad.onnx --run run"]
WRITTEN = ("out.onnx", "out", "run")
LONGEST_ERROR = 20_000


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
    model = onnx.load(folder / "ptq-run" / "model_int8.onnx")
    model.metadata_props.add(key=MetadataKey.OVERRIDES, value="[]")
    assert require_codes(ptq, folder, model, HOSTILE[kind], QUANTIZED) > 15

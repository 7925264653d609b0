"""The exporters are silenced, and nothing else is; PyTorch works on one thread while ptq uses it.

A file is told by its content, never by its name.
"""

import io
import logging
import warnings
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from ptq_cli.core.errors import ModelFolderError, ModelFormatError
from ptq_cli.models.loading.source import ModelKind, SourceFile, detect_kind
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.quiet_export import one_thread, quiet_exporter
from tests.each_case import each_case
from tests.unit.models.loading.sources import SmallNet


def test_nothing_is_heard_inside(capfd, caplog, recwarn):
    with quiet_exporter():
        print("Applied 3 rules")
        warnings.warn("old operator", UserWarning, stacklevel=1)
        logging.getLogger("torch.onnx").error("no such kernel")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert not recwarn.list


def test_everything_is_heard_again_behind(capfd, caplog):
    with pytest.raises(ValueError, match="wrong"), quiet_exporter():
        raise ValueError("wrong")
    print("heard")
    logging.getLogger("torch.onnx").error("heard too")
    assert capfd.readouterr().out == "heard\n"
    assert [record.message for record in caplog.records] == ["heard too"]
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", UserWarning, stacklevel=1)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_restored_whatever_happens():
    with pytest.raises(KeyError), one_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 2


class Telling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.threads = set()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        self.threads.add(torch.get_num_threads())
        return self.layer(x)


@pytest.mark.usefixtures("two_threads")
def test_a_module_is_run_and_exported_on_one_thread(tmp_path):
    module = Telling().eval()
    source = ModuleSource(SourceFile(tmp_path / "m.pt", ModelKind.CHECKPOINT, "0" * 64), module)
    example = {"x": np.ones((2, 3), np.float32)}
    source.run(example)
    source.to_onnx(example)
    assert module.threads == {1}
    assert torch.get_num_threads() == 2


def write_onnx(path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    onnx.save(
        helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])), path
    )


def write_program(path: Path) -> None:
    with quiet_exporter():
        torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), path)


def write_script(path: Path) -> None:
    with quiet_exporter():
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), path)


WRITERS = {
    ModelKind.ONNX: write_onnx,
    ModelKind.EXPORTED_PROGRAM: write_program,
    ModelKind.TORCHSCRIPT: write_script,
    ModelKind.SAFETENSORS: lambda path: save_file({"w": torch.zeros(2)}, path),
}


@each_case("kind", WRITERS, ids=lambda kind: kind.name.lower())
@each_case("name", ["model.pt", "model.onnx", "model", "model.pt2"])
def test_kind_is_told_by_content_whatever_the_name(tmp_path, kind, name):
    path = tmp_path / "content.pt2"
    WRITERS[kind](path)
    assert detect_kind(path.rename(tmp_path / name)) is kind


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (SmallNet().state_dict(), {}),
        (SmallNet(), {}),
        (SmallNet().state_dict(), {"_use_new_zipfile_serialization": False}),
    ],
    ids=["state_dict", "pickled_module", "old_serialization"],
)
def test_what_torch_save_writes_is_a_checkpoint(tmp_path, content, options):
    torch.save(content, tmp_path / "model.pt", **options)
    assert detect_kind(tmp_path / "model.pt") is ModelKind.CHECKPOINT


def zip_of(names: list[str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * 100)
    return stream.getvalue()


BAD_CONTENT = {
    "empty": (b"", "is empty"),
    "text": (b"import torch\n", "is a text file"),
    "text_with_a_byte_order_mark": (b"\xef\xbb\xbfimport torch\n", "is a text file"),
    "utf8_text_cut_in_a_character": (("ä" * 300).encode()[:511], "is a text file"),
    "truncated_zip": (
        zip_of(["m/data.pkl"])[:-40],
        "is a truncated or damaged archive: File is not a zip file",
    ),
    "zip_of_no_model": (zip_of(["m/readme.txt"]), "is a zip archive, but not of a model"),
    "random_bytes": (np.random.default_rng(5).bytes(600), "has an unknown format"),
    "zeros": (bytes(600), "has an unknown format"),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "has an unknown format"),
}


@each_case("case", BAD_CONTENT)
def test_a_file_of_no_model_is_refused_with_what_it_is(tmp_path, case):
    content, message = BAD_CONTENT[case]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        detect_kind(path)
    assert caught.value.message == f"model 'model.pt' {message}"
    assert caught.value.code == "PTQ-MODEL-001"
    assert caught.value.hint


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ModelFolderError, match="is a folder, and this command takes a single file"):
        detect_kind(tmp_path)

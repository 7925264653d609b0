"""Which files of a folder are models, and which data and names belong to each."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ptq_cli.core.errors import DataFormatError, ModelFolderError
from ptq_cli.folders.file_requests import data_by_file
from ptq_cli.folders.model_folder import open_folder


def save(path: Path, op: str = "Neg") -> None:
    path.parent.mkdir(exist_ok=True)
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, [1])]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_models_are_found_with_what_belongs_to_them_and_without_what_was_made_of_them(tmp_path: Path) -> None:
    floats = ("decoder_with_past_model", "encoder_model", "onnx/decoder_model_merged")
    others = (
        "encoder_model_int8",
        "encoder_model_own",
        ".hidden/model",
        "ptq-run/model",
        "out/model",
        "a/b/c",
    )
    for name in (*floats, *others[:5]):
        save(tmp_path / f"{name}.onnx")
    save(tmp_path / "theirs.onnx", "DynamicQuantizeLinear")
    for name in ("config.json", "onnx/vocab.txt", "calib.txt", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    folder = open_folder(tmp_path, [tmp_path / "out"], "own")
    assert [file.with_suffix("").as_posix() for file in folder.files] == [floats[1], floats[0], floats[2]]
    left_out = ["encoder_model_int8.onnx", "encoder_model_own.onnx", "theirs.onnx"]
    assert [file.as_posix() for file in folder.left_out] == left_out
    assert [file.as_posix() for file in folder.carried] == ["config.json", "onnx/vocab.txt"]


def test_a_folder_without_float_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="is a folder without ONNX files") as error:
        open_folder(tmp_path)
    assert "optimum-cli export onnx" in error.value.hint
    save(tmp_path / "model.onnx", "DynamicQuantizeLinear")
    with pytest.raises(ModelFolderError, match=r"'model.onnx' are quantized already"):
        open_folder(tmp_path)


def test_data_are_for_all_models_or_have_their_names(tmp_path: Path) -> None:
    files = [Path("encoder.onnx"), Path("onnx/decoder.onnx"), Path("onnx/other.onnx")]
    (tmp_path / "0.npz").touch()
    assert set(data_by_file(str(tmp_path), files).values()) == {str(tmp_path)}
    (tmp_path / "encoder.npz").touch()
    (tmp_path / "onnx" / "decoder").mkdir(parents=True)
    own = data_by_file(str(tmp_path), files)
    assert list(own.values()) == [str(tmp_path / "encoder.npz"), str(tmp_path / "onnx/decoder"), None]
    (tmp_path / "encoder.txt").touch()
    with pytest.raises(DataFormatError, match=r"'encoder.npz' and 'encoder.txt', which are both named for"):
        data_by_file(str(tmp_path), files)

"""A quantized file is compared with what the user brought, all files of it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptq_cli.models.loading.detect import detect_kind
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.pipeline.calibration.provenance import opened_bytes, source_bytes, source_hashes
from ptq_cli.pipeline.setup.run_directory import RunDirectory


def with_external_data(path: Path) -> Path:
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *[[v] for v in values])
    graph.initializer.append(weight)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_count_and_what_is_gone_is_not_guessed(tmp_path: Path) -> None:
    path, run = with_external_data(tmp_path / "model.onnx"), RunDirectory(tmp_path / "run")
    file = SourceFile(path, detect_kind(path), "")
    settings = {**source_hashes(None, file, run), "calibration.method": "'max'"}
    size = path.stat().st_size + 64 * 64 * 4
    assert source_bytes(str(path), settings, run) == opened_bytes(file) == size
    (tmp_path / "weights.bin").unlink()
    assert source_bytes(str(path), settings, run) is None


def test_a_model_of_another_kind_has_no_size_to_compare_with(tmp_path: Path) -> None:
    path, run = tmp_path / "model.pt", RunDirectory(tmp_path / "run")
    path.write_bytes(b"\x80\x02}")
    file = SourceFile(path, detect_kind(path), "")
    settings = source_hashes(None, file, run)
    assert (source_bytes(str(path), settings, run), opened_bytes(file)) == (None, None)

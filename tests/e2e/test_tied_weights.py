"""A language model's table of embeddings is its last layer's weight: one constant, through every command."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from tests.e2e.conftest import Ptq
from tests.unit.plan.graphs import build

TEXT = """(int64[N,S] ids) => (float[N,S,512] y) <float[512,32] table, float[32,32] w, float[32] b> {
    rows = Gather(table, ids)
    h = MatMul(rows, w)
    a = Add(h, b)
    r = Relu(a)
    turned = Transpose<perm=[1,0]>(table)
    y = MatMul(r, turned) }"""


def test_a_shared_table_is_one_constant_and_every_command_reads_it(folder: Path, ptq: Ptq) -> None:
    onnx.save(ir.to_proto(build(TEXT)), folder / "tied.onnx")
    np.savez(folder / "ids.npz", ids=np.random.default_rng(0).integers(0, 512, (32, 6)))
    outcome = ptq("quantize tied.onnx --data ids.npz --eval-data ids.npz --set run.evaluate=true --run tied")
    assert outcome.status == 0, outcome.err
    floats = {item.name for item in onnx.load("tied/model.float.onnx").graph.initializer}
    assert floats == {"table", "w", "b"}
    large = {item.name: item.data_type for item in onnx.load("tied/model_int8.onnx").graph.initializer}
    assert {name: kind for name, kind in large.items() if "table" in name or "turned" in name} == {
        "table.quantized": onnx.TensorProto.INT8,
        "turned.scale": onnx.TensorProto.FLOAT,
        "turned.zero_point": onnx.TensorProto.INT8,
    }
    report = json.loads((folder / "tied/report.json").read_text())
    own, written = (Path(name).stat().st_size for name in ("tied.onnx", "tied/model_int8.onnx"))
    assert (report["model"]["source_bytes"], report["model"]["size_ratio"]) == (own, own / written)
    assert f"{100 * written / own:.1f} % of float" in outcome.out
    assert re.search(r"float +tied\.onnx", outcome.out)
    assert next(item["quantized_value"] for item in report["metrics"] if item["name"] == "sqnr_db") > 40
    told = {layer["name"]: layer["reason"] for layer in report["layers"]}
    assert told["rows"] == "looks up rows of the table 'table' in the integer weight of 'y'"
    verified = ptq("verify tied/model_int8.onnx --json")
    assert verified.status == 0, verified.err
    assert ptq("analyze --eval-data ids.npz --run tied").status == 0
    analysis = json.loads((folder / "tied/analysis.json").read_text())
    assert {layer["name"] for layer in analysis["layers"] if layer["sensitivity"]} == {"h", "y"}


def test_a_table_of_a_layer_in_float_is_float_and_there_once(folder: Path, ptq: Ptq) -> None:
    onnx.save(ir.to_proto(build(TEXT)), folder / "tied.onnx")
    outcome = ptq("quantize tied.onnx --preset w4_block32 --exclude y --run tied")
    assert outcome.status == 0, outcome.err
    constants = onnx.load("tied/model_q4.onnx").graph.initializer
    assert [tuple(item.dims) for item in constants if 512 in item.dims] == [(512, 32)]


WIDE = """(int64[N,S] ids) => (float[N,S,128] y) <float[128,32] table, float[32,1024] v, float[1024,32] w> {
    rows = Gather(table, ids)
    h = MatMul(rows, v)
    r = Relu(h)
    o = MatMul(r, w)
    turned = Transpose<perm=[1,0]>(table)
    y = MatMul(o, turned) }"""


def test_a_shared_table_with_more_bits_is_there_once(folder: Path, ptq: Ptq) -> None:
    onnx.save(ir.to_proto(build(WIDE)), folder / "wide.onnx")
    np.savez(folder / "ids.npz", ids=np.random.default_rng(0).integers(0, 128, (64, 6)))
    made = ptq("quantize wide.onnx --data ids.npz --preset w4_block32 --set accuracy.goal_db=40 --run wide")
    assert made.status == 0, made.err
    assert "8 bits for 2 layers (y, rows) (bits)" in made.out, made.out
    constants = onnx.load("wide/model_q4.onnx").graph.initializer
    kinds = [
        onnx.TensorProto.DataType.Name(item.data_type) for item in constants if np.prod(item.dims) == 4096
    ]
    assert kinds == ["INT8"]

"""``ptq prepare``: the float graph in a file, what was done for it, and what is refused."""

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.e2e.conftest import Ptq, Refuse
from tests.each_case import each_case, table

GELU_BLOCK = """<ir_version: 7, opset_import: ["" : 11]> block (float[N,3,6,6] x) => (float[N,4,4,4] y)
    <float[4,3,3,3] w = {WEIGHT}, float[4] s = {1, 2, 0.5, 1}, float[4] v = {1, 2, 3, 4},
     float r = {1.4142135}, float one = {1}, float half = {0.5}> {
    c = Conv(x, w)
    n = BatchNormalization(c, s, s, s, v)
    d = Div(n, r)
    e = Erf(d)
    a = Add(e, one)
    m = Mul(n, a)
    h = Mul(m, half)
    i = Identity(h)
    y = Relu(i) }"""
SIZES = """<ir_version: 7, opset_import: ["" : 17]> g (float[N,C] x) => (float[N,5] y)
    { s = Constant<value = int64[2] {-1, 5}>()
      y = Reshape(x, s) }"""

HALF_QUANTIZED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y)
    <float s = {0.03}, uint8 z = {128}, int8[2,2] w = {100, -50, 25, 127}, float k = {0.01},
     float[2,2] v = {1, -1, 0.5, 2}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(w, k)
    h = MatMul(d, e)
    r = Relu(h)
    y = MatMul(r, v) }"""

EQUAL = r"the ONNX model equals the file's (within \S+ of its largest output|exactly)"


@pytest.fixture
def block(folder: Path) -> Path:
    """An old model: opset 11, a BatchNormalization, and a GELU that is written out."""
    weight = ", ".join(f"{number:.3f}" for number in np.random.default_rng(0).standard_normal(108))
    onnx.save(onnx.parser.parse_model(GELU_BLOCK.replace("WEIGHT", weight)), folder / "block.onnx")
    return folder / "block.onnx"


def test_the_table_tells_what_was_done(block: Path, ptq: Ptq) -> None:
    outcome = ptq("export --float block.onnx -o float.onnx")
    assert outcome.status == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "block.onnx: ONNX"
    assert "pass times what it did" in lines
    assert "simplify 1 folded constants and removed nodes that compute nothing" in lines
    assert "batch_norm 1 BatchNormalization into the layer before it" in lines
    assert "gelu 1 erf or tanh form into Gelu" in lines
    assert "nodes: 9 before, 3 after; opset 20" in lines
    assert "note: converted from opset 11 to 20" in lines
    assert any(re.match(EQUAL, line) for line in lines)
    assert lines[-1] == "wrote float.onnx"


def test_the_file_computes_what_the_source_does(block: Path, ptq: Ptq) -> None:
    assert ptq("export --float block.onnx -o float.onnx").status == 0
    x = np.random.default_rng(1).standard_normal((5, 3, 6, 6)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(path).run(None, {"x": x})[0] for path in ("block.onnx", "float.onnx")
    )
    np.testing.assert_allclose(after, before, atol=1e-5)
    assert [node.op_type for node in onnx.load("float.onnx").graph.node] == ["Conv", "Gelu", "Relu"]


def test_data_are_compared_on_where_they_are_named(folder: Path, ptq: Ptq) -> None:
    words = "export --float model.pt --arch model.py:build --data calib.npz -o float.onnx"
    outcome = ptq(words)
    assert outcome.status == 0, outcome.err
    assert "the ONNX model equals PyTorch's within " in outcome.out
    assert outcome.out.splitlines()[-2].endswith("of its largest output, on calib.npz")


def test_what_is_written_is_what_calibrate_measures(folder: Path, ptq: Ptq) -> None:
    assert ptq("export --float model.onnx -o float.onnx").status == 0
    assert (folder / "float.onnx").read_bytes() == (folder / "ptq-run/model.float.onnx").read_bytes()


def test_sizes_that_random_inputs_do_not_fit(folder: Path, ptq: Ptq) -> None:
    onnx.save(onnx.parser.parse_model(SIZES), folder / "sizes.onnx")
    assert (
        "not compared: sizes.onnx does not run on random inputs"
        in ptq("export --float sizes.onnx -o f.onnx").out
    )
    np.save(folder / "x.npy", np.ones((4, 10), np.float32))
    assert "the ONNX model equals the file's" in ptq("export --float sizes.onnx --data x.npy -o f.onnx").out


def test_an_old_model_is_quantized_and_its_conversion_told(block: Path, ptq: Ptq) -> None:
    np.save("x.npy", np.random.default_rng(1).standard_normal((16, 3, 6, 6)).astype(np.float32))
    outcome = ptq("calibrate block.onnx --data x.npy --run old")
    assert outcome.status == 0, outcome.err
    assert re.search(EQUAL, outcome.out)
    assert "note: converted from opset 11 to 20" in outcome.out
    assert ptq("export --onnx --run old").status == 0
    operators = [node.op_type for node in onnx.load("old/model_int8.onnx").graph.node]
    assert operators.count("QuantizeLinear") == 2 and operators[-2:] == ["Gelu", "Relu"]


def test_pairs_that_a_model_holds_are_kept(folder: Path, ptq: Ptq) -> None:
    onnx.save(onnx.parser.parse_model(HALF_QUANTIZED), folder / "half.onnx")
    np.save("x.npy", np.random.default_rng(1).standard_normal((16, 2)).astype(np.float32))
    outcome = ptq("quantize half.onnx --data x.npy --run half")
    assert outcome.status == 0, outcome.err
    assert "note: 3 nodes already quantize or dequantize, and are kept as they are" in outcome.out
    operators = [node.op_type for node in onnx.load("half/model_int8.onnx").graph.node]
    assert operators.count("QuantizeLinear") == 2
    assert "already quantized: " in ptq("inspect half.onnx --json").out


REFUSED = table("""
    export --float model.onnx                               | PTQ-USAGE-001 | --float needs an output
    export --float model.onnx -o model.onnx                 | PTQ-USAGE-001 | would overwrite the model
    export --float model.onnx --data calib.npz -o calib.npz | PTQ-USAGE-001 | calibration data
    export --float model.onnx -o ptq-run                    | PTQ-FILE-002  | it is a folder
    export --float none.onnx -o f.onnx                      | PTQ-FILE-001  | 'none.onnx' does not exist
    export --float model.pt --arch model.py:build -o f.onnx | PTQ-MODEL-007 | are not known (x)
""")


@each_case("words, code, says", REFUSED)
def test_what_is_refused(refuse: Refuse, words: str, code: str, says: str) -> None:
    refuse(words, code, says)

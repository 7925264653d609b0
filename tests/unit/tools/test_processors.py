"""A pack is cut, run by the script that travels, and judged; integer arithmetic is that of ONNX Runtime.

No processor is emulated here: ``make test-processors`` does that.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from safetensors.numpy import load_file, save_file

from tools.processors import __main__ as command
from tools.processors import emulators
from tools.processors.exact import expect
from tools.processors.judge import judge
from tools.processors.kernels import Kernels, open_session, run
from tools.processors.packs import FailedError, QuantizedFile, write_pack

OPSETS = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
STATIC = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 3, 9, 9] x) => (float[n, 5] y)
<float sx = {0.01}, uint8 zx = {120}, float[4] sw = {0.01, 0.02, 0.005, 0.03}, int8[4] zw = {0, 0, 0, 0},
 float sc = {0.09}, uint8 zc = {131}, float sf = {0.02}, int8 zf = {0}> {
    xq = QuantizeLinear(x, sx, zx)
    xd = DequantizeLinear(xq, sx, zx)
    wd = DequantizeLinear <axis = 0> (w, sw, zw)
    c = Conv <kernel_shape = [3, 3]> (xd, wd)
    cq = QuantizeLinear(c, sc, zc)
    cd = DequantizeLinear(cq, sc, zc)
    r = Add(cd, cd)
    rq = QuantizeLinear(r, sc, zc)
    rd = DequantizeLinear(rq, sc, zc)
    f = Flatten(rd)
    fq = QuantizeLinear(f, sc, zc)
    fd = DequantizeLinear(fq, sc, zc)
    vd = DequantizeLinear(v, sf, zf)
    y = MatMul(fd, vd)
}"""
DYNAMIC = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 7] x) => (float[n, 5] y) <float s = {0.02}> {
    xq, sx, zx = DynamicQuantizeLinear(x)
    sums = MatMulInteger(xq, v, zx)
    floats = Cast <to = 1> (sums)
    scale = Mul(sx, s)
    y = Mul(floats, scale)
}"""


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def integers(random: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.int8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def quantized(text: str, **weights: np.ndarray) -> bytes:
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return model.SerializeToString()


@pytest.fixture
def pack(tmp_path: Path, random: np.random.Generator) -> Path:
    """Return a pack of a static and a dynamic file."""
    images, rows = random.normal(size=(3, 3, 9, 9)), random.normal(size=(3, 7))
    static = quantized(STATIC, w=integers(random, (4, 3, 3, 3)), v=integers(random, (196, 5)))
    dynamic = quantized(DYNAMIC, v=integers(random, (7, 5)))
    files = [
        QuantizedFile(name, content, batches, batches)
        for name, content, batches in (
            ("static", static, [{"x": images[:1].astype(np.float32)}, {"x": images.astype(np.float32)}]),
            ("dynamic", dynamic, [{"x": rows.astype(np.float32)}]),
        )
    ]
    write_pack(tmp_path / "pack", files)
    return tmp_path / "pack"


@pytest.fixture
def answer(pack: Path) -> Path:
    """Return the answer of this machine, where kernels do not saturate."""
    path = pack / "answer.safetensors"
    outputs = {}
    for folder in (pack / "cases").iterdir():
        session = open_session((folder / "model.onnx").read_bytes(), exact=True)
        given: dict[str, dict[str, np.ndarray]] = {}
        for key, array in load_file(folder / "inputs.safetensors").items():
            number, _, name = key.partition(":")
            given.setdefault(number, {})[name] = array
        for number, inputs in given.items():
            outputs |= {f"{folder.name}:{number}:{name}": it for name, it in run(session, inputs).items()}
    save_file(outputs, path, about(pack))
    return path


def about(pack: Path) -> dict[str, str]:
    return {"seconds": json.dumps({folder.name: 0.1 for folder in (pack / "cases").iterdir()})}


def found(pack: Path, answer: Path) -> Mapping[str, tuple[int, int, str]]:
    return {item.case: (item.kernels, item.differing, item.text) for item in judge(pack, answer)}


def change(answer: Path, part: str, amount: float) -> None:
    """Add to the least number in the first row of one output."""
    outputs = {key: array.copy() for key, array in load_file(answer).items()}
    (array,) = (array for key, array in outputs.items() if part in key)
    place = array.reshape(-1, array.shape[-1])[0].argmin()
    array.flat[place] = array.flat[place] + array.dtype.type(amount)
    save_file(outputs, answer, about(answer.parent))


def test_the_kernels_of_a_file_are_cut_apart(pack: Path, answer: Path) -> None:
    assert [node.op_type for node in Kernels((pack / "cases/static.file/model.onnx").read_bytes()).nodes] == [
        "QLinearConv",
        "QLinearAdd",
        "MatMulIntegerToFloat",
    ]
    assert found(pack, answer) == {
        "dynamic.file": (0, 0, ""),
        "dynamic.kernels": (1, 0, ""),
        "static.file": (0, 0, ""),
        "static.kernels": (3, 0, ""),
    }


def test_the_script_that_travels_runs_every_case(pack: Path, answer: Path) -> None:
    path = pack / "there.safetensors"
    done = subprocess.run(
        [sys.executable, "-I", str(pack / "run.py"), str(pack), str(path)],
        cwd=pack,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there, here = load_file(path), load_file(answer)
    assert {name: (array.dtype, array.shape) for name, array in there.items()} == {
        name: (array.dtype, array.shape) for name, array in here.items()
    }
    # Kernels that only move through the grid are the same on every processor; sums may saturate on this one.
    assert all(np.array_equal(array, here[name]) for name, array in there.items() if name.endswith("rq"))


@pytest.mark.parametrize(
    ("part", "amount", "case", "expected"),
    [
        ("static.kernels:2:cq", 1, "static.kernels", (3, 1, "1 QLinearConv")),
        ("static.kernels:0:rq", 1, "static.kernels", (3, 0, "1 up to a step apart")),
        ("static.kernels:0:rq", 2, "static.kernels", (3, 1, "1 QLinearAdd")),
        # One more in a sum is a step of both scales, 0.09 times 0.02.
        ("static.kernels:1:y", 0.0018, "static.kernels", (3, 1, "1 MatMulIntegerToFloat")),
        ("static.kernels:1:y", 0.00001, "static.kernels", (3, 0, "")),
        ("static.kernels:1:y", np.nan, "static.kernels", (3, 1, "1 MatMulIntegerToFloat")),
        ("dynamic.kernels:0:sums", 1, "dynamic.kernels", (1, 1, "1 MatMulInteger")),
    ],
)
def test_one_more_in_a_sum_is_found(
    pack: Path, answer: Path, part: str, amount: float, case: str, expected: tuple[int, int, str]
) -> None:
    change(answer, part, amount)
    assert found(pack, answer)[case] == expected


def test_outputs_may_differ_as_rounding_makes_them(pack: Path, answer: Path) -> None:
    change(answer, "static.file:1:y", 0.1)
    kernels, differing, text = found(pack, answer)["static.file"]
    assert (kernels, differing) == (0, 0) and "dB, as written" in text and text.endswith("top-1 4 of 4")
    change(answer, "static.file:1:y", 1000)
    _, differing, text = found(pack, answer)["static.file"]
    assert differing == 1 and text.endswith("top-1 3 of 4")


def test_an_answer_that_lacks_an_output_has_failed(pack: Path, answer: Path) -> None:
    outputs = load_file(answer)
    del outputs["static.kernels:0:cq"]
    save_file(outputs, answer, about(pack))
    with pytest.raises(FailedError, match=r"^static\.kernels gave no '0:cq' of the shape \(1, 4, 7, 7\)$"):
        judge(pack, answer)


@pytest.mark.parametrize(
    "attributes",
    [
        {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 3]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "dilations": [1, 1]},
        {"auto_pad": "VALID"},
    ],
    ids=["groups", "same-upper", "same-lower", "valid"],
)
def test_convolutions_are_those_of_onnxruntime(
    attributes: Mapping[str, Any], random: np.random.Generator
) -> None:
    inputs = {
        "x": integers(random, (2, 6, 11, 8), np.uint8),
        "sx": np.float32(0.02),
        "zx": np.uint8(117),
        "w": integers(random, (4, 6 // attributes.get("group", 1), 3, 2)),
        "sw": random.uniform(0.001, 0.01, 4).astype(np.float32),
        "zw": np.zeros(4, np.int8),
        "sy": np.float32(0.3),
        "zy": np.uint8(129),
        "b": random.integers(-9999, 9999, 4, np.int32),
    }
    compare(onnx.helper.make_node("QLinearConv", list(inputs), ["y"], "c", **attributes), inputs)


@pytest.mark.parametrize(("turned", "quantizes"), [(0, True), (1, True), (1, False)])
def test_gemms_are_those_of_onnxruntime(turned: int, quantizes: bool, random: np.random.Generator) -> None:
    inputs = {
        "a": integers(random, (3, 40), np.uint8),
        "sa": np.float32(0.02),
        "za": np.uint8(117),
        "b": integers(random, (5, 40) if turned else (40, 5)),
        "sb": random.uniform(0.001, 0.01, 5).astype(np.float32),
        "zb": np.zeros(5, np.int8),
        "c": random.integers(-9999, 9999, 5, np.int32),
    }
    if quantizes:
        inputs |= {"sy": np.float32(0.1), "zy": np.uint8(129)}
    node = onnx.helper.make_node(
        "QGemm", list(inputs), ["y"], domain="com.microsoft", transB=turned, alpha=1.0
    )
    compare(node, inputs)


@pytest.mark.parametrize("quantizes", [True, False])
def test_products_of_matrices_are_those_of_onnxruntime(quantizes: bool, random: np.random.Generator) -> None:
    a, b = integers(random, (2, 3, 40), np.uint8), integers(random, (2, 40, 5), np.uint8)
    sa, sb, za, zb = np.float32(0.02), np.float32(0.03), np.uint8(117), np.uint8(9)
    if quantizes:
        values = {"a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": zb}
        values |= {"sy": np.float32(0.5), "zy": np.uint8(129)}
        compare(onnx.helper.make_node("QLinearMatMul", list(values), ["y"]), values)
    else:
        bias = random.normal(size=5).astype(np.float32)
        values = {"a": a, "b": b, "sa": sa, "sb": sb, "za": za, "zb": zb, "bias": bias}
        domain = "com.microsoft"
        compare(onnx.helper.make_node("MatMulIntegerToFloat", list(values), ["y"], domain=domain), values)


def compare(node: onnx.NodeProto, inputs: Mapping[str, Any]) -> None:
    """Compare a kernel with ONNX Runtime's, which gets zero points and weights as constants."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    x = node.input[0]
    given = onnx.helper.make_tensor_value_info(
        x, onnx.helper.np_dtype_to_tensor_dtype(arrays[x].dtype), arrays[x].shape
    )
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name != x]
    graph = onnx.helper.make_graph([node], "one", [given], [onnx.ValueInfoProto(name="y")], constants)
    model = onnx.helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    here = run(open_session(model.SerializeToString(), exact=True), {x: arrays[x]})["y"]
    expected = expect(node, list(arrays.values()))
    assert here.dtype == expected.value.dtype and here.shape == expected.value.shape
    assert np.all(np.abs(here.astype(np.float64) - expected.value) <= expected.tolerance)
    assert len(np.unique(here)) > 5, "most of it saturates, so nothing was compared"


def test_the_script_that_travels_is_for_old_pythons_and_needs_little() -> None:
    source = Path(emulators.__file__).with_name("run.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [it.name for it in node.names]
        )
    }
    assert imported - sys.stdlib_module_names == {"numpy", "onnxruntime"}


def test_what_cannot_be_tried_never_passes(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(command, "FILES", {})
    monkeypatch.setattr(command, "write_pack", lambda folder, files, whole: pack)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["wasm"]) == 2
    printed = capsys.readouterr().out
    assert "wasm          cannot be tried here: it needs node, which is not installed" in printed
    assert printed.splitlines()[-1].endswith("not tried")


def test_a_runner_that_fails_is_a_difference(
    pack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (pack / "cases" / "static.file" / "model.onnx").write_bytes(b"no model")
    monkeypatch.setattr(command, "CACHE", pack.parent)
    monkeypatch.setattr(command, "FILES", {})
    monkeypatch.setattr(command, "write_pack", lambda folder, files, whole: pack)
    assert command.main(["here"]) == 1
    assert "here          failed: exit status 1\n" in capsys.readouterr().out


def test_a_part_of_the_emulators_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise emulators.UnavailableError("no network")

    with pytest.raises(emulators.UnavailableError):
        emulators._whole(tmp_path / "cache" / "part", fail)
    assert list((tmp_path / "cache").iterdir()) == []

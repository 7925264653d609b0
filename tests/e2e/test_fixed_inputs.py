"""``[model.inputs]``: an input that is fixed is gone, and so is what it chose between."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import ptq_cli
from ptq_cli.core.errors import FixedInputError, StaleCalibrationError
from tests.e2e.conftest import operators
from tests.each_case import each_case, table
from tests.graphs import parsed

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)

VOICE = """<ir_version: 10, opset_import: ["": 17]>
voice (float[N, 32] input, int64 sr) => (float[N, 4] output)
    <int64 rate = {16000}> {
    is_fast = Equal(sr, rate)
    output = If(is_fast) <
        then_branch = fast () => (float[N, 4] a) { a = MatMul(input, w16) },
        else_branch = slow () => (float[N, 4] b) { c = MatMul(input, w8)  b = Tanh(c) }
    >
}
"""
RANDOM = np.random.default_rng(0)
Ptq = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    weights = {name: RANDOM.standard_normal((32, 4)).astype(np.float32) for name in ("w16", "w8")}
    onnx.save(parsed(VOICE, weights), "voice.onnx")
    x = RANDOM.standard_normal((12, 32)).astype(np.float32)
    np.savez("calib.npz", input=x)
    np.savez("with_sr.npz", input=x, sr=np.full(12, 8000))
    return tmp_path


def test_every_verb(folder: Path, ptq: Ptq) -> None:
    fixed = "--set model.inputs.sr=16000"
    assert ptq(f"export --float voice.onnx {fixed} -o float.onnx").status == 0
    assert set(operators("float.onnx")) == {"MatMul"}
    inspected = json.loads(ptq(f"inspect voice.onnx {fixed} --json").out)
    assert [item["name"] for item in inspected["inputs"]] == ["input"]
    told = ptq(f"calibrate voice.onnx --data with_sr.npz {fixed}").out
    assert "note: the input 'sr' is fixed to 16000" in told
    assert "equals the file's exactly" in told
    for words in ("export --onnx", "evaluate --eval-data calib.npz", "analyze", "verify"):
        assert ptq(words).status == 0, words
    assert "If" not in operators("ptq-run/model.float.onnx") + operators("ptq-run/model_int8.onnx")
    for name in ("model.float.onnx", "model_int8.onnx"):
        metadata = {item.key: item.value for item in onnx.load(f"ptq-run/{name}").metadata_props}
        assert metadata["ptq.inputs"] == '{"sr": 16000}'
    assert "[model.inputs]\nsr = 16000" in Path("ptq-run/recipe.toml").read_text()
    assert ptq(f"bench voice.onnx ptq-run/model_int8.onnx {fixed} --runs 3").status == 0
    assert ptq(f"verify {fixed}").status == 0
    assert ptq("verify --set model.inputs.sr=8000").status == 2
    with pytest.raises(StaleCalibrationError, match=r"'input' was {'sr': 16000}"):
        ptq_cli.export(input={"sr": 8000})


def test_the_file_itself_is_run_with_the_value(folder: Path) -> None:
    for rate, kept in ((16000, set()), (8000, {"Tanh"})):
        result = ptq_cli.prepare(
            "voice.onnx", output="float.onnx", data="calib.npz", input={"sr": np.int64(rate)}
        )
        assert result.difference == 0.0 and set(operators("float.onnx")) == {"MatMul"} | kept
        assert f"the input 'sr' is fixed to {rate}" in result.notes


def test_a_recipe_fixes_inputs(folder: Path) -> None:
    Path("ptq.toml").write_text('[model]\npath = "voice.onnx"\n[model.inputs]\nsr = 16000\n')
    result = ptq_cli.quantize(data="calib.npz", eval_data="calib.npz", evaluate=True)
    assert result.export.output.is_file()


@each_case(
    "words, code, said",
    table("""
    --set model.inputs.rate=1            | PTQ-MODEL-009 | names 'rate', which is not an input of 'voice.onnx'
    --set model.inputs.sr=0.5            | PTQ-MODEL-009 | is int64, which cannot hold 0.5
    --set model.inputs.sr=fast           | PTQ-RECIPE-003 | 'model.inputs.sr' is 'fast', expected a number
"""),
)
def test_refused(folder: Path, refuse: Callable[..., None], words: str, code: str, said: str) -> None:
    refuse(f"calibrate voice.onnx --data calib.npz {words}", code, said)


class Scaled(torch.nn.Module):
    """A number that chooses, and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, sr: int) -> torch.Tensor:
        """Return scores."""
        if sr == 16000:
            x = x * scale
        return self.fc(x)


@pytest.mark.parametrize("kind", ["module", "script", "program"])
def test_pytorch(folder: Path, kind: str) -> None:
    module, values = Scaled().eval(), {"sr": 16000, "scale": [1.0, 2.0] * 4}
    settings: dict[str, Any] = {}
    file = "m.pt2" if kind == "program" else "m.pt"
    if kind == "module":
        Path("arch.py").write_text(
            "import torch\n"
            "class Scaled(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.fc = torch.nn.Linear(8, 3)\n"
            "    def forward(self, x, scale, sr):\n"
            "        return self.fc(x * scale if sr == 16000 else x)\n"
        )
        torch.save(module.state_dict(), file)
        settings = {"arch": "arch.py:Scaled"}
    elif kind == "script":
        torch.jit.script(module).save(file)
    else:
        values = {"scale": values["scale"]}
        batch = torch.export.Dim("batch")
        arguments = {"x": torch.ones(2, 8), "scale": torch.ones(8)}
        shapes = {"x": {0: batch}, "scale": None}
        torch.export.save(torch.export.export(Wrapped(module), (), arguments, dynamic_shapes=shapes), file)
    np.savez("x.npz", x=RANDOM.standard_normal((6, 8)).astype(np.float32))
    ptq_cli.calibrate(file, data="x.npz", input=values, **settings)
    graph = onnx.load("ptq-run/model.float.onnx").graph
    assert [value.name for value in graph.input] == ["x"]
    with pytest.raises(FixedInputError, match=r"names 'scal', which is not an input of 'm.pt2?'"):
        ptq_cli.calibrate(file, data="x.npz", input={"scal": 1}, **settings)


class Wrapped(torch.nn.Module):
    """A module of tensors alone."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.inner(x, scale, 16000)


RATES = """(float[N,1,64] x, int64 sr) => (float[N,3] y) {
    high = Constant<value = int64 {16000}>()
    last = Constant<value = int64[1] {-1}>()
    is_high = Equal(sr, high)
    y = If(is_high) <
        then_branch = wide () => (float[N,3] p) {
            h = Conv<pads=[1,1], strides=[2]>(x, conv_high)
            r = Relu(h)
            long = Shape(r)
            place = Constant<value = int64 {2}>()
            size = Gather(long, place)
            half = Constant<value = int64 {32}>()
            is_half = Equal(size, half)
            m = If(is_half) <
                then_branch = as_trained () => (float[N,4] m1) { m1 = ReduceMean<axes=[2], keepdims=0>(r) },
                else_branch = other () => (float[N,4] m2) { m2 = ReduceMax<axes=[2], keepdims=0>(r) }>
            p = MatMul(m, out_high) },
        else_branch = narrow () => (float[N,3] q) {
            h = Conv<pads=[1,1]>(x, conv_low)
            r = Relu(h)
            m = ReduceMean<axes=[2], keepdims=0>(r)
            q = MatMul(m, out_low) }>
}"""


def saved(folder: Path) -> Path:
    random = np.random.default_rng(5)
    shapes = {"conv_high": (4, 1, 3), "conv_low": (4, 1, 3), "out_high": (4, 3), "out_low": (4, 3)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    onnx.save(parsed(RATES, weights, opset=16), folder / "model.onnx")
    np.savez(folder / "data.npz", x=random.standard_normal((32, 1, 64)).astype(np.float32))
    return folder / "model.onnx"


def test_the_branch_that_remains_is_quantized_like_any_graph(tmp_path: Path):
    path, data, run = saved(tmp_path), str(tmp_path / "data.npz"), tmp_path / "run"
    for rate, weights in ((16000, {"conv_high", "out_high"}), (8000, {"conv_low", "out_low"})):
        output = tmp_path / f"{rate}.onnx"
        prepared = ptq_cli.prepare(path, output=output, data=data, input={"sr": rate})
        assert prepared.applied["known_branch"] == (2 if rate == 16000 else 1)
        assert prepared.difference is not None and prepared.difference < 1e-5
        graph = onnx.load(output).graph
        assert "If" not in {node.op_type for node in graph.node}
        assert [value.name for value in graph.input] == ["x"]
        assert weights <= {tensor.name for tensor in graph.initializer}
        assert not {"conv_high", "conv_low"} - weights & {tensor.name for tensor in graph.initializer}
    result = ptq_cli.quantize(path, run=run, data=data, input={"sr": 16000}, threads=1, prefer="size")
    assert [layer.op for layer in result.export.plan.layers if layer.quantized][:2] == ["Conv", "Relu"]
    assert ptq_cli.verify(run=run, threads=1).verdict == "pass"

"""Samples that are not on the first axis, scalars of each batch, and whole steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.errors import BatchAxisError, DataShapeError
from tests.graphs import parsed

torch.set_num_threads(1)
VOICE = """<ir_version: 10, opset_import: ["": 17]>
voice (float[N, 16] input, float[2, N, 8] state, int64 sr) => (float[N, 3] output, float[2, N, 8] stateN)
    <int64[1] first = {0}, float one = {1.0}> {
    rate = Cast <to = 1> (sr)
    gain = Div(rate, rate)
    scaled = Mul(input, gain)
    h = MatMul(scaled, wx)
    both = Add(state, h)
    new = MatMul(both, wh)
    stateN = Tanh(new)
    last = Gather <axis = 0> (stateN, first)
    flat = Squeeze(last, first)
    output = MatMul(flat, wo)
}
"""
RANDOM = np.random.default_rng(0)
COUNT = 11
Ptq = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shapes = {"wx": (16, 8), "wh": (8, 8), "wo": (8, 3)}
    weights = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    onnx.save(parsed(VOICE, weights), "voice.onnx")
    np.savez("calib.npz", **arrays())
    return tmp_path


def arrays(count: int = COUNT) -> dict[str, np.ndarray]:
    return {
        "input": RANDOM.standard_normal((count, 16)).astype(np.float32),
        "state": RANDOM.standard_normal((2, count, 8)).astype(np.float32),
        "sr": np.array(16000),
        "label": RANDOM.integers(0, 3, count),
    }


def statistics(run: str) -> bytes:
    return Path(run, "calibration.safetensors").read_bytes()


def test_a_scalar_may_have_a_value_for_each_sample(folder: Path) -> None:
    data = arrays() | {"sr": np.full(COUNT, 16000, np.int64)}
    np.savez("same.npz", **data)
    result = ptq_cli.calibrate("voice.onnx", data="same.npz", batch_axis={"state": 1})
    assert result.samples == COUNT
    np.savez("other.npz", **(data | {"sr": np.arange(1, COUNT + 1)}))
    with pytest.raises(
        DataShapeError, match="'sr' is a single value, but the values of a batch differ"
    ) as error:
        ptq_cli.calibrate("voice.onnx", data="other.npz", batch_axis={"state": 1})
    assert "batch_size=1" in error.value.hint and "input={'sr': VALUE}" in error.value.hint
    one = ptq_cli.calibrate("voice.onnx", data="other.npz", batch_axis={"state": 1}, batch_size=1)
    assert one.samples == COUNT


def test_an_axis_that_the_model_s_own_sizes_tell(folder: Path, ptq: Ptq) -> None:
    note = "note: the samples of 'state' are on axis 1, as the model's file says"
    words = "quantize voice.onnx --data calib.npz --set data.batch_size=4 "
    words += "--set data.batch_size=4 --set evaluation.latency=false"
    told = ptq(f"{words} --eval-data calib.npz --run told")
    assert told.status == 0 and told.err.startswith(note) and f"on {COUNT} samples" in told.out
    assert note in ptq("inspect voice.onnx").out
    assert json.loads(ptq("inspect voice.onnx --json").out)["notes"] == [told.err.splitlines()[0][6:]]
    for command in (
        "export --float voice.onnx -o float.onnx",
        "bench --operators voice.onnx -o profile.json",
    ):
        assert note in ptq(command).out, command
    assert note in ptq("bench voice.onnx --runs 3").err
    # All that is kept is as if the axis had been named, so that later commands need neither.
    named = ptq(f"{words} --eval-data calib.npz --run named --set data.batch_axis.state=1")
    assert named.status == 0 and "note: the samples" not in named.err
    for file in ("calibration.safetensors", "model.float.onnx", "model_int8.onnx", "recipe.toml"):
        assert Path("told", file).read_bytes() == Path("named", file).read_bytes(), file
    for command in ("export", "evaluate", "analyze", "verify"):
        assert ptq(f"{command} --run told").status == 0, command
    # An axis that is named is in charge.
    refused = ptq("calibrate voice.onnx --data calib.npz --set data.batch_axis.state=0")
    assert refused.status == 2 and "note: the samples" not in refused.err
    # A file that ptq prepared tells the axes that it was prepared with.
    prepared = ptq("calibrate float.onnx --data calib.npz --set data.batch_size=4 --run prepared")
    assert prepared.status == 0 and prepared.err.startswith(note)


def test_samples_that_are_first_where_the_model_has_them_second(folder: Path) -> None:
    data = arrays()
    np.savez("first.npz", **data | {"state": data["state"].swapaxes(0, 1)})
    with pytest.raises(DataShapeError, match="'input' has 11, 'state' has 2") as error:
        ptq_cli.calibrate("voice.onnx", data="first.npz")
    assert "numpy.moveaxis(array, 0, 1)" in error.value.hint


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"stat": 1},
            r"names 'stat', which is neither an input nor an output of 'voice.onnx' \(did you mean 'state'",
        ),
        ({"state": 3}, r"{'state': 3}: 'state' of 'voice.onnx' has 3 axes"),
    ],
)
def test_an_axis_that_is_not_there(folder: Path, axes: dict[str, int], message: str) -> None:
    with pytest.raises(BatchAxisError, match=message):
        ptq_cli.calibrate("voice.onnx", data="calib.npz", batch_axis=axes)


class Step(torch.nn.Module):
    """One step of a recurrent model."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the next state."""
        new = torch.tanh(self.fc(x) + state)
        return new[0], new


def test_pytorch_is_exported_with_the_axis_dynamic(folder: Path) -> None:
    Path("arch.py").write_text(
        "import torch\n"
        "class Step(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x, state):\n"
        "        new = torch.tanh(self.fc(x) + state)\n"
        "        return new[0], new\n"
    )
    torch.save(Step().state_dict(), "m.pt")
    np.savez(
        "steps.npz",
        x=RANDOM.standard_normal((6, 4)).astype(np.float32),
        state=RANDOM.standard_normal((2, 6, 4)).astype(np.float32),
    )
    ptq_cli.calibrate("m.pt", arch="arch.py:Step", data="steps.npz", batch_axis={"state": 1})
    graph = onnx.load("ptq-run/model.float.onnx").graph
    sizes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    assert sizes["state"][1] == sizes["x"][0] and isinstance(sizes["x"][0], str)


def save_steps(folder: str, count: int) -> None:
    Path(folder).mkdir()
    for number in range(count):
        # Each is of another length, so that they could not be joined; the state belongs to the step.
        x = np.full((number + 1, 16), number, np.float32)
        state = np.zeros((2, number + 1, 8), np.float32)
        np.savez(f"{folder}/{number}.npz", input=x, state=state, sr=np.array(8000))


def test_each_file_of_a_folder_is_a_step(folder: Path, ptq: Ptq) -> None:
    save_steps("steps", 11)
    told = ptq(
        "quantize voice.onnx --data steps --set data.batch_axis.*=none --eval-data steps "
        "--set run.evaluate=true"
    )
    assert told.status == 0 and "on 11 steps" in told.out, told.err
    # 10.npz is after 2.npz, and nothing is split: three steps end with that of three rows.
    three = ptq_cli.calibrate("voice.onnx", data="steps", batch_axis={"*": "none"}, samples=3, run="three")
    seen = load_calibration(Path("three/calibration.safetensors")).statistics["input"]
    assert (three.samples, seen.high, seen.count) == (3, 2.0, 16 * (1 + 2 + 3))
    Path("empty").mkdir()
    empty = ptq("calibrate voice.onnx --data empty --set data.batch_axis.*=none")
    assert empty.status == 2 and "holds no images, .npz files, tar shards or Parquet files" in empty.err
    np.savez("steps/11.npz", input=np.zeros((1, 16), np.float32), sr=np.array(8000))
    refused = ptq("calibrate voice.onnx --data steps --set data.batch_axis.*=none")
    assert refused.status == 2
    assert "'steps/11.npz' has 'input', 'sr', but the first file of 'steps' has" in refused.err


def test_files_of_samples_are_joined(folder: Path) -> None:
    data = arrays()
    np.savez("all.npz", **data)
    Path("parts").mkdir()
    for number, part in enumerate((slice(0, 4), slice(4, 5), slice(5, None))):
        cut = {"input": data["input"][part], "state": data["state"][:, part], "label": data["label"][part]}
        np.savez(f"parts/{number}.npz", **cut, sr=data["sr"])
    found = []
    for number, source in enumerate(("all.npz", "parts", "parts/{0..2}.npz")):
        run = f"run-{number}"
        ptq_cli.calibrate("voice.onnx", data=source, batch_axis={"state": 1}, batch_size=4, run=run)
        found.append(load_calibration(Path(run, "calibration.safetensors")))
    assert [item.provenance.samples for item in found] == [COUNT] * 3
    assert found[0].statistics.keys() == found[1].statistics.keys()
    for name, item in found[0].statistics.items():
        others = [other.statistics[name] for other in found[1:]]
        assert all((item.low, item.high, item.count) == (each.low, each.high, each.count) for each in others)


def test_single_samples_get_an_axis(folder: Path, ptq: Ptq) -> None:
    data = arrays()
    samples = [
        {"input": data["input"][i], "state": data["state"][:, i], "sr": data["sr"], "label": data["label"][i]}
        for i in range(COUNT)
    ]
    result = ptq_cli.quantize(
        "voice.onnx", data=samples, eval_data=samples, batch_axis={"state": 1}, evaluate=True, metric=["top1"]
    )
    assert result.calibration.samples == COUNT
    assert any("each is taken as one sample" in note for note in result.calibration.notes)
    ptq_cli.calibrate("voice.onnx", data="calib.npz", batch_axis={"state": 1}, run="stacked")
    found = load_calibration(Path("ptq-run/calibration.safetensors")).provenance.samples
    assert found == load_calibration(Path("stacked/calibration.safetensors")).provenance.samples
    Path("one").mkdir()
    for number, sample in enumerate(samples):
        np.savez(f"one/{number}.npz", **sample)
    assert (
        "on 11 samples"
        in ptq("calibrate voice.onnx --data one --set data.batch_axis.state=1 --run one-run").out
    )
    np.savez("flat.npz", input=data["input"][0], state=data["state"], sr=data["sr"])
    refused = ptq("calibrate voice.onnx --data flat.npz --set data.batch_axis.state=1 --run flat-run")
    assert refused.status == 2 and "numpy.stack(samples, 0) joins several" in refused.err


def test_recovery_sets_pieces_aside_where_samples_lie_elsewhere(folder: Path, ptq: Ptq) -> None:
    words = "quantize voice.onnx --data calib.npz --set data.batch_axis.state=1 --recover all --json "
    words += "--weight-bits 4"
    outcome = ptq(words)
    assert outcome.status == 0, outcome
    (found,) = json.loads(outcome.out)["export"]["recovery"]["effects"]
    assert found["layers"]
    assert found["samples"] == 8
    assert found["decided_by"] == 7  # Three are held out; three eighths of eleven are more.

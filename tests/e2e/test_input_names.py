"""Arrays of the data and inputs of the model: names that differ are found before PyTorch exports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptq_cli
from ptq_cli.cli.main import run as main
from ptq_cli.core.errors import DataNameError
from ptq_cli.models.loading.torch_sources import TorchScriptSource

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Pair(torch.nn.Module):
    """Two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.fc(image * scale)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 3)).eval()).save("one.pt")
    torch.jit.script(Pair().eval()).save("pair.pt")
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((12, 4)).astype(np.float32) for name in ("x", "s")}
    np.savez("one.npz", x=arrays["x"])
    np.savez("pair.npz", **arrays, target=random.integers(0, 3, 12))
    return tmp_path


@pytest.fixture
def one_run(folder: Path) -> Path:
    """The folder with a run of the model with one input, and data under its name."""
    array = np.load("one.npz")["x"]
    np.savez("x.npz", input=array)
    np.save("x.npy", array)
    ptq_cli.quantize("one.pt", data="x.npz", latency=False)
    return folder


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("exported before the names were checked")

    monkeypatch.setattr(TorchScriptSource, "to_onnx", refuse)


def test_the_only_array_is_taken_and_that_is_told(folder: Path, capsys: Any) -> None:
    assert main(["calibrate", "one.pt", "--data", "one.npz", "--json"]) == 0
    note = "the array 'x' of 'one.npz' is used for the input 'input'"
    assert note in json.loads(capsys.readouterr().out)["notes"]


def test_renamed_arrays_serve_calibration_and_evaluation(folder: Path, capsys: Any) -> None:
    renames = [
        "--set",
        "data.rename.x=image",
        "--set",
        "data.rename.s=scale",
        "--set",
        "data.rename.target=label",
    ]
    assert main(["quantize", "pair.pt", "--data", "pair.npz", "--eval-data", "pair.npz", *renames]) == 0
    result = ptq_cli.evaluate()
    assert result.report.metrics[0].name == "top1"
    assert ptq_cli.analyze(samples=4).analysis.samples.count == 4
    recipe = Path("ptq-run/recipe.toml").read_text()
    assert 'x = "image"' in recipe and "[data.rename]" in recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "pair.npz"}, "no array for input 'image' in"),
        ({"data": "pair.npz", "rename": {"x": "imge", "s": "scale"}}, r"\(did you mean 'image'\?\)"),
        ({"data": "pair.npz", "rename": {"xx": "image"}}, r"rename={'xx': 'image'}: .* has no array 'xx'"),
        ({"data": "good.npz", "eval_data": "pair.npz", "evaluate": True}, "input 'image' in '.*pair.npz'"),
    ],
    ids=["calibration", "wrong name", "no such array", "evaluation"],
)
def test_names_are_checked_before_the_export(folder, no_export, settings, message):
    ones = np.ones((4, 4), np.float32)
    np.savez("good.npz", image=ones, scale=ones)
    with pytest.raises(DataNameError, match=message):
        ptq_cli.quantize("pair.pt", **settings)


TYPED = {
    "calibrate one.pt --data x.npz --set data.rename.nosuch=input": "'x.npz' has no array 'nosuch'",
    "calibrate one.pt --data x.npz --set data.rename.input=nosuch": "the model has no input 'nosuch'",
    "calibrate one.pt --data x.npz --set data.rename.input=a=b": "the model has no input 'a=b'",
    "calibrate one.pt --data x.npy --set data.rename.nosuch=input": "the only array of 'x.npy' has no name",
    "export --float one.pt -o one.onnx --data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
    "inspect one.pt --data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
    "bench --data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
    "evaluate --eval-data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
    "evaluate --eval-data x.npz --set data.rename.nosuch=label": "has no array 'nosuch'",
    "analyze --data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
    "verify --data x.npz --set data.rename.nosuch=input": "has no array 'nosuch'",
}


def test_a_rename_that_is_typed_has_an_effect(one_run: Path, capsys: Any) -> None:
    for words, message in TYPED.items():
        assert main(words.split()) == 2, words
        error, hint = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("…")]
        assert error.startswith("error PTQ-DATA-002: --set data.rename.") and message in error, words
        assert "'input'" in hint or "leave --set data.rename out" in hint, words


def test_a_rename_that_cannot_be_read_is_refused(folder: Path, capsys: Any) -> None:
    assert main(["calibrate", "one.pt", "--data", "one.npz", "--set", "data.rename.image"]) == 2
    assert "--set 'data.rename.image' is not of the form KEY=VALUE" in capsys.readouterr().err

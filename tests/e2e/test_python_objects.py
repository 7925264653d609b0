"""Models and data that Python code has in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ptq_cli
from ptq_cli.collectors.calibration_file import load_calibration
from ptq_cli.core.errors import DataNameError, EntryPointError, PtqError, UsageError
from tests.graphs import parsed

torch.set_num_threads(1)
MODEL = """<ir_version: 10, opset_import: ["": 20]>
m (float[N, 6] x) => (float[N, 4] y) <float[6, 4] w> { y = MatMul(x, w) }
"""
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((10, 6)).astype(np.float32)
Y = RANDOM.integers(0, 4, 10)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def proto() -> onnx.ModelProto:
    weight = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    return parsed(MODEL.replace("<float[6, 4] w>", ""), {"w": weight})


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield X[:7], Y[:7]
    yield X[7:], Y[7:]


DATA = {
    "array": X,
    "dict": {"x": X, "label": Y},
    "tuple": (X, Y),
    "list of batches": [X[:4], X[4:]],
    "loader": DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=3),
    "samples": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "function": batches,
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_data(proto: onnx.ModelProto, data: Any) -> None:
    np.save("x.npy", X)
    one = ptq_cli.calibrate(proto, data=data, run="objects")
    ptq_cli.calibrate(proto, data="x.npy", run="file")
    assert one.samples == 10
    found = [ptq_cli.show_calibration(run=run).tensors[0] for run in ("objects", "file")]
    assert found[0] == found[1]


def test_labels_of_a_loader_serve_the_evaluation(proto: onnx.ModelProto) -> None:
    loader = DATA["loader"]
    result = ptq_cli.quantize(ir.from_proto(proto), data=loader, eval_data=loader, evaluate=True)
    assert result.evaluation is not None and result.evaluation.report.metrics[0].name == "top1"
    assert ptq_cli.evaluate(data=loader, metric=["top1"]).report.evaluation.samples == 10
    assert ptq_cli.analyze(data=loader).analysis.samples.count == 10
    quantized = onnx.load("ptq-run/model_int8.onnx")
    assert ptq_cli.verify(quantized, data=loader).comparison is not None


def test_a_module_stays_as_it_is() -> None:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    module = Local().train()
    result = ptq_cli.quantize(module, data=DATA["loader"], output="out.onnx")
    assert result.calibration.parity is not None and result.calibration.parity < 1e-4
    assert module.training and Path("out.onnx").is_file()
    with pytest.raises(UsageError, match="a module was passed"):
        ptq_cli.calibrate(module, data=X, arch="model.py:build")


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (None, (item for item in [X]), UsageError, "is a generator, which can be read only once"),
        (None, 5, UsageError, "the data is of type int, expected a path"),
        (3, X, UsageError, "the model is of type int, expected a path"),
        (None, (X, X, Y), DataNameError, "has 3 arrays without names, the model has 1 input: 'x'"),
    ],
    ids=["generator", "number", "no model", "too many"],
)
def test_refused(proto: onnx.ModelProto, model: Any, data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ptq_cli.calibrate(model or proto, data=data)


IN_PYTHON: dict[str, tuple[dict[str, Any], str]] = {
    "a text for a list": (
        {"data": X, "metric": "top1"},
        "PTQ-RECIPE-003: 'metric' is 'top1', expected a list of strings\nhint: correct 'metric'",
    ),
    "a dict with a value that is none": (
        {"data": X, "max_drop": {"top1": -1}},
        "PTQ-GATE-001: max_drop={'top1': -1.0} is negative: only a model that got better would pass\n"
        "hint: write the limit without a sign: max_drop={'top1': 1.0}",
    ),
    "no data": (
        {},
        "PTQ-DATA-005: no calibration data was given\n"
        "hint: data='data.npz', or data = 'data.npz' under [calibration] in ptq.toml",
    ),
    "data that does not fit": (
        {"data": {"x": X[:, :3]}},
        "PTQ-DATA-003: dimension 1 of input 'x' differs: found [?, 3], expected [?, 6], in 'dict'\n"
        "hint: reshape the array; for images set image.resize, image.mode or image.layout",
    ),
}


@pytest.mark.parametrize(("settings", "text"), IN_PYTHON.values(), ids=IN_PYTHON.keys())
def test_an_error_names_the_argument(proto: onnx.ModelProto, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(PtqError) as caught:
        ptq_cli.quantize(proto, **settings)
    assert str(caught.value) == text


def test_an_error_names_the_call_that_is_missing(proto: onnx.ModelProto) -> None:
    with pytest.raises(PtqError, match=r"run ptq_cli\.calibrate\(\) first, or pass another .* with run$"):
        ptq_cli.export(run="nowhere")


def test_a_state_dict_is_not_a_model() -> None:
    with pytest.raises(UsageError, match=r"expected a path, .*\nhint: of a state dict, pass the module"):
        ptq_cli.calibrate(torch.nn.Linear(6, 4).state_dict(), data=X)


def test_an_object_of_another_process_is_gone(proto: onnx.ModelProto) -> None:
    with pytest.raises(EntryPointError, match="it was passed as a Python object"):
        ptq_cli.calibrate(proto, data="ptq_cli.api.requests:DataLoader_0123456789abcdef")


def largest(tensor: str) -> float:
    return load_calibration(Path("ptq-run/calibration.safetensors")).statistics[tensor].high


class Stopping:
    """Batches that are read again and again, and end as Ctrl+C would before the third one, if asked to."""

    def __init__(self, last: np.ndarray, *, stops: bool = False) -> None:
        self.last, self.stops = last, stops

    def __iter__(self) -> Iterator[np.ndarray]:
        yield X[:2]
        yield X[2:4]
        if self.stops:
            raise KeyboardInterrupt
        yield self.last

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("as_list", [False, True], ids=["objects", "lists"])
def test_objects_that_begin_alike_are_not_taken_for_each_other(proto: onnx.ModelProto, as_list: bool) -> None:
    one, other = Stopping(X[4:6]), Stopping(9 * X[4:6])
    result = ptq_cli.quantize(
        proto, data=list(one) if as_list else one, eval_data=list(other) if as_list else other
    )
    report = result.evaluation.report
    assert largest("x") == X[:6].max()
    assert report.evaluation.data_digest != report.calibration.data_digest


def test_no_checkpoint_of_an_object_that_cannot_be_recognized(proto: onnx.ModelProto) -> None:
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ptq_cli.calibrate(
            proto,
            data=Stopping(X[4:6], stops=True),
            batch_size=2,
            checkpoint_every=0,
            progress=lambda step: told.append(step.note),
        )
    assert "no checkpoints are written: the data is a Python object, which cannot be recognized later" in told
    assert not Path("ptq-run/calibration.partial.safetensors").exists()
    whole = ptq_cli.calibrate(proto, data=Stopping(9 * X[4:6]), batch_size=2)
    assert whole.samples == 6
    assert largest("x") == max(X[:4].max(), (9 * X[4:6]).max())

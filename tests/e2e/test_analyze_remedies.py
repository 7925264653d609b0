"""Each flag that ``ptq analyze`` proposes is run as it is printed, on a model made to show its cause."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from ptq_cli.core.documents import read_document
from ptq_cli.evaluation.document.analysis_document import Analysis
from tests.e2e.conftest import Ptq
from tests.graphs import parsed

RECIPE = """\
[model]
path = "model.onnx"
[calibration]
data = "calib.npz"
[evaluation]
data = "eval.npz"
"""
WIDTH = 256

Arrays = dict[str, np.ndarray]


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def usual() -> tuple[Arrays, np.ndarray, np.ndarray]:
    """Weights, calibration data and evaluation data in which nothing stands out."""
    weights = {"w0": normal((WIDTH, 64), 0) / 16, "w1": normal((64, 8), 1) / 8}
    return weights, normal((1024, WIDTH), 2), normal((64, WIDTH), 3)


def rare_outlier() -> tuple[Arrays, np.ndarray, np.ndarray]:
    weights, calibration, evaluation = usual()
    calibration = np.tile(calibration, (8, 1))
    calibration[5, 7] = 150.0
    return weights, calibration, evaluation


def wide_channel() -> tuple[Arrays, np.ndarray, np.ndarray]:
    """Half a percent of the channels is 200 times as wide, which the weights undo."""
    weights, calibration, evaluation = usual()
    for data in (calibration, evaluation):
        data[:, :2] *= 200
    weights["w0"][:2] /= 200
    return weights, calibration, evaluation


def large_bias() -> tuple[Arrays, np.ndarray, np.ndarray]:
    """A bias ten million times the weights, which another input takes away again."""
    _, calibration, evaluation = usual()
    weights = {
        "w1": normal((WIDTH, 64), 1) / 16,
        "w0": normal((64, 8), 0) * 6e-6,
        "b0": np.full(8, 100.0, np.float32),
    }
    return weights, calibration, evaluation


def write_model(weights: Arrays) -> None:
    inputs, nodes = f"float[n,{WIDTH}] x", "[first] h = MatMul(x, w0) [second] y = MatMul(h, w1)"
    if "b0" in weights:
        inputs += ", float[n,8] z"
        nodes = "[second] h = MatMul(x, w1) [first] sum = Gemm(h, w0, b0) [undo] y = Add(sum, z)"
    graph = f"({inputs}) => (float[n,8] y) {{ {nodes} }}"
    onnx.save(parsed(graph, weights, opset=20, ir_version=10), "model.onnx")


def prepare(make: Callable[[], tuple[Arrays, np.ndarray, np.ndarray]]) -> None:
    """Write the model, its data and a recipe into the current folder."""
    weights, *data = make()
    write_model(weights)
    for name, x in zip(("calib.npz", "eval.npz"), data, strict=True):
        undo = {"z": np.full((len(x), 8), -100.0, np.float32)} if "b0" in weights else {}
        np.savez(name, x=x, **undo)
    Path("ptq.toml").write_text(RECIPE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that shows a cause."""

    make: Callable[[], tuple[Arrays, np.ndarray, np.ndarray]]
    settings: str
    cause: str
    remedy: str
    gain_db: float = 3.0


CASES = {
    "outliers": Case(
        make=rare_outlier,
        settings="--amax max",
        cause="outliers",
        remedy=r"ptq export --amax (mse|entropy|percentile)",
    ),
    "outliers, no histograms": Case(
        make=rare_outlier,
        settings="--method max",
        cause="outliers",
        remedy="ptq quantize --method histogram --amax mse",
    ),
    "clipping": Case(
        make=usual,
        settings="--set amax.percentile=90",
        cause="clipping",
        remedy=(
            r"ptq export "
            r"--amax (max|mse)"
        ),
    ),
    "clipped weights": Case(
        make=usual,
        settings="--set amax.weight_method=percentile --set amax.percentile=90 --amax max",
        cause="clipping",
        remedy=r"ptq export --set amax.weight_method=(max|mse)",
    ),
    "few steps": Case(
        make=usual, settings="--weight-bits 3", cause="few steps", remedy="ptq export --weight-bits 8"
    ),
    "channel imbalance": Case(
        make=wide_channel, settings="", cause="channel imbalance", remedy="ptq export --exclude first"
    ),
    "bias overflow": Case(
        make=large_bias, settings="", cause="bias overflow", remedy="ptq export --exclude first"
    ),
    "nothing but its own noise": Case(
        make=usual, settings="", cause="", remedy="ptq export --exclude first", gain_db=1.0
    ),
    "not fused": Case(
        make=usual,
        settings="--set override=first:weights.quantizer=centers,weights.centers=4",
        cause="not fused",
        remedy="ptq export --exclude first",
    ),
}


def analyzed(ptq: Ptq, *more: str) -> tuple[Analysis, str]:
    outcome = ptq("analyze", *more)
    assert outcome.status == 0, outcome
    return read_document(Analysis, Path("ptq-run/analysis.json")), outcome.out


def worst(analysis: Analysis) -> float:
    return min(tensor.sqnr_isolated_db for tensor in analysis.tensors)


def sqnr_db(analysis: Analysis) -> float:
    return analysis.metric.sqnr_db


@pytest.mark.parametrize("name", CASES)
def test_what_is_proposed_helps(name: str, ptq: Ptq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    prepare(case.make)
    assert ptq(f"quantize {case.settings} --recover none --prefer accuracy").status == 0
    before, said = analyzed(ptq)
    assert case.cause in {layer.cause for layer in before.layers}, said
    printed = re.search(r"^to try: (.+)$", said, re.MULTILINE)
    assert printed is not None and re.fullmatch(case.remedy, printed.group(1)), said
    outcome = ptq(printed.group(1).removeprefix("ptq "))
    assert outcome.status == 0, outcome
    after, _ = analyzed(ptq)
    assert sqnr_db(after) > sqnr_db(before) + case.gain_db
    assert worst(after) >= worst(before)

"""Data that cannot be used: refused with array, file or sample named, before or while it is read."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.each_case import each_case

CALIBRATE = "calibrate model.onnx --data {}"
QUANTIZE = "quantize model.onnx --data {}"
EVALUATE = "evaluate --eval-data {}"
QUANTIZE_AND_EVALUATE = "quantize model.onnx --data calib.npz --set run.evaluate=true --eval-data {}"
EVERYWHERE = (CALIBRATE, QUANTIZE, EVALUATE, QUANTIZE_AND_EVALUATE)


@dataclass(frozen=True, kw_only=True)
class Bad:
    """Data that are refused: how they come to be, their name, and the answer."""

    arrange: Callable[[Path], object]
    name: str
    code: str
    says: tuple[str, ...]
    hint: str | None = None


def arrays(**values: Any) -> Callable[[Path], object]:
    return lambda folder: np.savez(folder / "bad.npz", **values)


def images(count: int = 4, value: float = 0.5) -> np.ndarray:
    return np.full((count, 3, 8, 8), value, np.float32)


def with_value(value: float, at: tuple[int, ...] = (2, 1, 0, 5)) -> np.ndarray:
    array = images()
    array[at] = value
    return array


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def picture(size: int = 8) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def picture_folder(**files: bytes) -> Callable[[Path], object]:
    def arrange(folder: Path) -> None:
        for name, content in files.items():
            path = folder / "pictures" / name.replace("__", "/").replace("_jpg", ".jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return arrange


X = images()
LABEL = np.array([0, 1, 2, 3])

CASES: dict[str, Bad] = {
    "missing": Bad(
        arrange=lambda folder: None,
        name="nowhere.npz",
        code="PTQ-FILE-001",
        says=("'nowhere.npz' does not exist",),
        hint="npz",
    ),
    "an empty file": Bad(
        arrange=write("bad.npz", b""), name="bad.npz", code="PTQ-DATA-001", says=("is an empty file",)
    ),
    "a wrong name": Bad(
        arrange=arrays(X=X, Z=X, label=LABEL),
        name="bad.npz",
        code="PTQ-DATA-002",
        says=("no array for input 'x' in 'bad.npz', found 'X', 'Z'",),
    ),
    "a wrong shape": Bad(
        arrange=arrays(x=X[:, :2], label=LABEL),
        name="bad.npz",
        code="PTQ-DATA-003",
        says=("dimension 1 of input 'x' differs: found [?, 2, 8, 8], expected [?, 3, 8, 8]",),
    ),
    "counts that differ": Bad(
        arrange=arrays(x=X, label=LABEL[:3]),
        name="bad.npz",
        code="PTQ-DATA-006",
        says=("3 labels for 4 samples",),
    ),
    "a wrong dtype": Bad(
        arrange=arrays(x=X.astype(np.float64), label=LABEL),
        name="bad.npz",
        code="PTQ-DATA-004",
        says=("float64", "float32"),
    ),
    "no sample": Bad(
        arrange=arrays(x=X[:0], label=LABEL[:0]), name="bad.npz", code="PTQ-DATA-005", says=("bad.npz",)
    ),
    "NaN": Bad(
        arrange=arrays(x=with_value(np.nan), label=LABEL),
        name="bad.npz",
        code="PTQ-DATA-008",
        says=("input 'x' holds nan at [1, 0, 5] of sample 'bad.npz[2]'",),
    ),
    "a folder without images": Bad(
        arrange=lambda folder: (folder / "pictures").mkdir(),
        name="pictures",
        code="PTQ-DATA-005",
        says=("holds no images",),
        hint="suffixes",
    ),
    "a corrupt JPEG": Bad(
        arrange=picture_folder(a__1_jpg=picture(), a__2_jpg=picture()[:150], b__1_jpg=picture()),
        name="pictures",
        code="PTQ-DATA-007",
        says=("'a/2.jpg' of 'pictures' cannot be decoded",),
        hint="replace or remove",
    ),
    "a callable that raises": Bad(
        arrange=write("bad.py", b"def batches():\n    raise OSError('no disk')\n"),
        name="bad.py:batches",
        code="PTQ-ENTRY-001",
        says=("raised", "OSError: no disk"),
    ),
}


@each_case("bad", CASES.values(), ids=CASES.keys())
def test_bad_data_are_refused(folder: Path, anew: Any, refuse: Any, bad: Bad) -> None:
    anew()
    bad.arrange(folder)
    refuse(CALIBRATE.format(bad.name), bad.code, *bad.says, hint=bad.hint)


@each_case("command", EVERYWHERE)
@each_case("name", ["missing", "a wrong shape", "NaN"])
def test_every_command_refuses_bad_data(folder, anew, refuse, name, command):
    anew()
    bad = CASES[name]
    bad.arrange(folder)
    refuse(command.format(bad.name), bad.code, *bad.says, hint=bad.hint)


LABELS: dict[str, Bad] = {
    "none": Bad(
        arrange=arrays(x=X),
        name="bad.npz --metric top1",
        code="PTQ-DATA-006",
        says=("metric 'top1' needs labels, and 'bad.npz' has none",),
    ),
    "none for a limit": Bad(
        arrange=arrays(x=X),
        name="bad.npz --max-drop top5=0.1",
        code="PTQ-DATA-006",
        says=("metric 'top5' needs labels",),
    ),
    "one-hot": Bad(
        arrange=arrays(x=X, label=np.eye(4, 5, dtype=int)),
        name="bad.npz --metric top1",
        code="PTQ-DATA-006",
        says=("[4, 5]",),
        hint="argmax",
    ),
}


@each_case("bad", LABELS.values(), ids=LABELS.keys())
def test_bad_labels_are_refused(folder: Path, anew: Any, refuse: Any, bad: Bad) -> None:
    anew()
    bad.arrange(folder)
    refuse(EVALUATE.format(bad.name), bad.code, *bad.says, hint=bad.hint)


NONE_NAMED = {
    "calibrate": ("calibrate model.onnx", "calibration", "--data"),
    "quantize": ("quantize model.onnx", "calibration", "--data"),
    "quantize with a limit": (
        "quantize model.onnx --data calib.npz --min cosine=0.9",
        "evaluation",
        "--eval-data",
    ),
}


@each_case("words, section, flag", NONE_NAMED.values(), ids=NONE_NAMED.keys())
def test_no_data_at_all(refuse: Any, words: str, section: str, flag: str) -> None:
    refuse(words, "PTQ-DATA-005", f"no {section} data was given", hint=flag)


@pytest.mark.parametrize("model", ["model.onnx", "ptq-run/model.int8.onnx"], ids=["float", "quantized"])
def test_inspect_refuses_data_as_a_calibration_does(folder: Path, refuse: Any, model: str) -> None:
    (folder / "none").mkdir()
    np.savez(folder / "bad.npz", x=np.ones((4, 3, 9, 8), np.float32))
    refuse(f"inspect {model} --data nowhere.npz", "PTQ-FILE-001", "data 'nowhere.npz' does not exist")
    refuse(f"inspect {model} --data none", "PTQ-DATA-005", "folder 'none' holds no images")
    refuse(f"inspect {model} --data bad.npz", "PTQ-DATA-003", "dimension 2 of input 'x' differs")


def overflow(proto: onnx.ModelProto) -> None:
    """Let the model take a logarithm, which is infinite where a sample is all zeros."""
    graph = proto.graph
    graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "zero.bias"))
    graph.node[0].input[2] = "zero.bias"
    graph.node.insert(2, helper.make_node("Log", ["relu"], ["log"], "log"))
    graph.node[3].input[0] = "log"


@pytest.mark.parametrize("command", [CALIBRATE, QUANTIZE], ids=["calibrate", "quantize"])
def test_an_infinite_activation_names_tensor_and_sample(folder: Path, refuse: Any, command: str) -> None:
    proto = onnx.load(folder / "model.onnx")
    overflow(proto)
    proto.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "conv.weight")
    )
    onnx.save(proto, folder / "log.onnx")
    x = images(6)
    x[4] = 0
    np.savez(folder / "zeros.npz", x=x)
    words = command.format("zeros.npz").replace("model.onnx", "log.onnx")
    refuse(f"{words} --batch-size 4", "PTQ-CALIB-001", "is -inf", "sample 'zeros.npz[4]'", hint="float model")


def test_an_input_shape_beside_data_must_agree_with_them(refuse: Any) -> None:
    words = "calibrate model.pt --arch model.py:build --data calib.npz --input-shape "
    refuse(words + "x=1,3,9,9", "PTQ-DATA-003", "'x' is [?, 3, 8, 8]", "[1, 3, 9, 9]")
    refuse(words + "y=1,3,8,8", "PTQ-MODEL-007", "does not name the input 'x'")
    refuse(words + "x=1,3,8,8 --input-shape xs=1", "PTQ-MODEL-007", "'xs', which is not an input")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_data(folder: Path, ptq: Any) -> None:
    (folder / "calib.npz").chmod(0)
    outcome = ptq("calibrate model.onnx --data calib.npz")
    assert outcome.status == 2
    assert "cannot be read" in outcome.err

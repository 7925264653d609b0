"""Data that cannot be used: refused with array, file or sample named, before or while it is read."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.each_case import each_case, table

CALIBRATE = "calibrate model.onnx --data {}"
QUANTIZE = "quantize model.onnx --data {}"
EVALUATE = "evaluate --eval-data {}"
QUANTIZE_AND_EVALUATE = "quantize model.onnx --data calib.npz --set run.evaluate=true --eval-data {}"


def arrays(**values: Any) -> Callable[[Path], object]:
    return lambda folder: np.savez(folder / "bad.npz", **values)


def images(count: int = 4, value: float = 0.5) -> np.ndarray:
    return np.full((count, 3, 8, 8), value, np.float32)


def with_value(value: float) -> np.ndarray:
    array = images()
    array[2, 1, 0, 5] = value
    return array


def picture() -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3)).astype(np.uint8)
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

NPZ = "bad.npz"
# What makes the data; their name, the code, what the error says, and its hint: one for each place that looks
# at data. All that a format can be refused for is tested in tests/unit/calibdata.
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: None, "nowhere.npz | PTQ-FILE-001 | 'nowhere.npz' does not exist | npz"),
    "a wrong name": (
        arrays(X=X, Z=X, label=LABEL),
        "bad.npz | PTQ-DATA-002 | no array for input 'x' in 'bad.npz', found 'X', 'Z' | ~",
    ),
    "NaN": (
        arrays(x=with_value(np.nan), label=LABEL),
        "bad.npz | PTQ-DATA-008 | input 'x' holds nan at [1, 0, 5] of sample 'bad.npz[2]' | ~",
    ),
    "a corrupt JPEG": (
        picture_folder(a__1_jpg=picture(), a__2_jpg=picture()[:150]),
        "pictures | PTQ-DATA-007 | 'a/2.jpg' of 'pictures' cannot be decoded | replace or remove",
    ),
    "no labels for a limit": (
        arrays(x=X),
        "bad.npz --max-drop top5=0.1 | PTQ-DATA-006 | metric 'top5' needs labels | ~",
    ),
    "labels that are one-hot": (
        arrays(x=X, label=np.eye(4, 5, dtype=int)),
        "bad.npz --metric top1 | PTQ-DATA-006 | [4, 5] | argmax",
    ),
}


@each_case("name", CASES)
def test_bad_data_are_refused(folder, anew, refuse, name):
    anew()
    arrange, row = CASES[name]
    arrange(folder)
    ((words, code, says, hint),) = table(row)
    refuse((EVALUATE if "label" in name else CALIBRATE).format(words), code, says, hint=hint or None)


@each_case("command", (QUANTIZE, EVALUATE, QUANTIZE_AND_EVALUATE))
def test_every_command_refuses_bad_data(folder, anew, refuse, command):
    anew()
    CASES["NaN"][0](folder)
    refuse(command.format(NPZ), "PTQ-DATA-008", "input 'x' holds nan at [1, 0, 5] of sample 'bad.npz[2]'")


@each_case(
    "words, section, flag",
    table("""
    calibrate model.onnx | calibration | --data
    quantize model.onnx | calibration | --data
    quantize model.onnx --data calib.npz --min cosine=0.9 | evaluation | --eval-data
    """),
)
def test_no_data_at_all(refuse: Any, words: str, section: str, flag: str) -> None:
    refuse(words, "PTQ-DATA-005", f"no {section} data was given", hint=flag)


@pytest.mark.parametrize("model", ["model.onnx", "ptq-run/model_int8.onnx"], ids=["float", "quantized"])
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
    refuse(
        f"{words} --set data.batch_size=4",
        "PTQ-CALIB-001",
        "is -inf",
        "sample 'zeros.npz[4]'",
        hint="float model",
    )


def test_an_input_shape_beside_data_must_agree_with_them(refuse: Any) -> None:
    words = "calibrate model.pt --arch model.py:build --data calib.npz --set model.input_shape."
    refuse(words + "x=1,3,9,9", "PTQ-DATA-003", "'x' is [?, 3, 8, 8]", "[1, 3, 9, 9]")
    refuse(words + "y=1,3,8,8", "PTQ-MODEL-007", "does not name the input 'x'")
    refuse(words + "x=1,3,8,8 --set model.input_shape.xs=1", "PTQ-MODEL-007", "'xs', which is not an input")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_data(folder: Path, ptq: Any) -> None:
    (folder / "calib.npz").chmod(0)
    outcome = ptq("calibrate model.onnx --data calib.npz")
    assert outcome.status == 2
    assert "cannot be read" in outcome.err

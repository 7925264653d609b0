"""Models that cannot be used: each is refused with its reason, and earlier outputs stay as they were."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.each_case import each_case

Arrange = Callable[[Path], object]
COMMANDS = ("calibrate", "quantize", "inspect")
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A model that is refused: how it comes to be, the words after the command, and the answer."""

    arrange: Arrange
    words: str
    code: str
    says: tuple[str, ...]
    hint: str


class Pickled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def write(name: str, content: bytes | str) -> Arrange:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


def truncate(name: str, share: float = 0.6) -> Arrange:
    def arrange(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return arrange


def damage(name: str) -> Arrange:
    def arrange(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2 :: 3] = b"\xff" * len(content[len(content) // 2 :: 3])
        (folder / name).write_bytes(bytes(content))

    return arrange


def save_pickle(folder: Path) -> None:
    torch.save(Pickled(), folder / "bad.pt")


def save_arch(text: str) -> Arrange:
    return write("bad.py", f"import torch\n\n\n{text}\n")


def edit_onnx(edit: Callable[[onnx.ModelProto], object]) -> Arrange:
    def arrange(folder: Path) -> None:
        proto = onnx.load(folder / "model.onnx")
        edit(proto)
        (folder / "bad.onnx").write_bytes(proto.SerializeToString())

    return arrange


def refer_outside(proto: onnx.ModelProto) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")


def refer_missing(proto: onnx.ModelProto) -> None:
    refer_outside(proto)
    tensor = proto.graph.initializer[0]
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="weights.bin")


def use_unknown_operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].op_type = "Frobnicate"


def use_custom_domain(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].op_type = "Frobnicate"
    proto.graph.node[1].domain = "my.company"
    proto.opset_import.add(domain="my.company", version=1)


DATA = " --data calib.npz"
WITH_ARCH = "model.pt --arch "
LOOP = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        while x.sum() > 0:
            x = x - self.weight.abs() - 1
        return x
"""
RAISES_INSIDE = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(7, 2)

    def forward(self, x):
        return self.inner(x)
"""


def save_net(text: str) -> Arrange:
    """Write an architecture and a state dict that fits it."""

    def arrange(folder: Path) -> None:
        save_arch(text)(folder)
        names: dict[str, Any] = {"torch": torch}
        exec(text, names)
        torch.save(names["Net"]().state_dict(), folder / "bad.pt")

    return arrange


def bad_file(content: bytes | str, *says: str, hint: str) -> Bad:
    return Bad(arrange=write("bad.pt", content), words="bad.pt", code="PTQ-MODEL-001", says=says, hint=hint)


def bad_arch(text: str, code: str, *says: str, hint: str) -> Bad:
    """Return the case of an architecture file with this text."""
    return Bad(arrange=save_arch(text), words=WITH_ARCH + "bad.py:build", code=code, says=says, hint=hint)


def bad_onnx(edit: Callable[[onnx.ModelProto], object], code: str, *says: str, hint: str) -> Bad:
    return Bad(arrange=edit_onnx(edit), words="bad.onnx", code=code, says=says, hint=hint)


CASES: dict[str, Bad] = {
    "missing": Bad(
        arrange=nothing,
        words="nowhere.pt",
        code="PTQ-FILE-001",
        says=("model 'nowhere.pt' does not exist",),
        hint="check the path",
    ),
    "a folder": Bad(
        arrange=lambda folder: (folder / "bad").mkdir(),
        words="bad",
        code="PTQ-MODEL-010",
        says=("model 'bad' is a folder",),
        hint="name a file",
    ),
    "text": bad_file("import torch\n", "is a text file", hint="expected: "),
    "a damaged zip": Bad(
        arrange=damage("model.pt"),
        words="model.pt --arch model.py:build",
        code="PTQ-MODEL-001",
        says=("model.pt",),
        hint="",
    ),
    "a truncated ONNX": Bad(
        arrange=truncate("model.onnx"),
        words="model.onnx",
        code="PTQ-MODEL-001",
        says=("not an ONNX file, or is damaged",),
        hint="copy or export",
    ),
    "a pickled module": Bad(
        arrange=save_pickle,
        words="bad.pt",
        code="PTQ-MODEL-002",
        says=("can run any code",),
        hint="--trust-pickle",
    ),
    "no arch": Bad(
        arrange=nothing,
        words="model.pt",
        code="PTQ-MODEL-003",
        says=("not the architecture",),
        hint="--arch model.py:build",
    ),
    "arch that raises": bad_arch(
        "def build():\n    raise ValueError('no layers')",
        "PTQ-ENTRY-001",
        "raised ValueError: no layers",
        hint="without arguments",
    ),
    "arch with other shapes": Bad(
        arrange=lambda folder: (folder / "bad.py").write_text(
            (folder / "model.py").read_text().replace("Net()", "Net(16)")
        ),
        words=WITH_ARCH + "bad.py:build",
        code="PTQ-MODEL-003",
        says=("conv.weight is [8, 3, 3, 3] in the file and [16, 3, 3, 3] in the architecture",),
        hint="trained with",
    ),
    "a loop on values": Bad(
        arrange=save_net(LOOP),
        words="bad.pt --arch bad.py:Net",
        code="PTQ-MODEL-004",
        says=("at layer 'inner'",),
        hint="control flow",
    ),
    "a layer that does not take the data": Bad(
        arrange=save_net(RAISES_INSIDE),
        words="bad.pt --arch bad.py:Net",
        code="PTQ-MODEL-007",
        says=("at layer 'inner'",),
        hint="shape, dtype",
    ),
    "ONNX with an unknown operator": bad_onnx(
        use_unknown_operator, "PTQ-MODEL-005", "Frobnicate", hint="export it again"
    ),
    "ONNX with data missing": bad_onnx(
        refer_missing, "PTQ-MODEL-001", "'weights.bin'", "is missing", hint="put it next to"
    ),
}


@each_case("bad", CASES.values(), ids=CASES.keys())
def test_a_bad_model_is_refused(folder: Path, anew: Any, refuse: Any, bad: Bad) -> None:
    anew()
    bad.arrange(folder)
    refuse(f"calibrate {bad.words}{DATA}", bad.code, *bad.says, hint=bad.hint)


@each_case("command", COMMANDS)
@each_case("name", ["a damaged zip", "arch with other shapes", "ONNX with an unknown operator"])
def test_every_command_refuses_a_bad_model(folder, anew, refuse, name, command):
    anew()
    bad = CASES[name]
    bad.arrange(folder)
    refuse(f"{command} {bad.words}{DATA}", bad.code, *bad.says, hint=bad.hint)


@pytest.mark.parametrize("command", ["calibrate", "quantize"])
def test_an_operator_that_onnx_runtime_does_not_have(folder: Path, refuse: Any, command: str) -> None:
    edit_onnx(use_custom_domain)(folder)
    refuse(f"{command} bad.onnx{DATA}", "PTQ-RUNTIME-001", "Frobnicate", hint="custom domain")


@each_case("command", COMMANDS)
def test_no_model_at_all(refuse: Any, command: str) -> None:
    refuse(f"{command}{DATA}", "PTQ-USAGE-001", "no model was given", hint="under [model] in ptq.toml")


@pytest.mark.skipif(AS_ROOT, reason="root reads everything")
@each_case("command", COMMANDS)
def test_an_unreadable_model(folder: Path, ptq: Any, command: str) -> None:
    (folder / "model.onnx").chmod(0)
    outcome = ptq(f"{command} model.onnx{DATA}")
    assert outcome.status == 2
    assert "cannot be read" in outcome.err


def test_a_trusted_pickle_is_loaded(folder: Path, ptq: Any) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), folder / "whole.pt")
    np.savez(folder / "images.npz", input=np.ones((4, 3, 8, 8), np.float32))
    outcome = ptq("calibrate whole.pt --trust-pickle --data images.npz --run new")
    assert outcome.status == 0, outcome


def test_a_model_of_which_nothing_can_be_quantized(folder: Path, refuse: Any) -> None:
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, ["batch", 3, 8, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Sin", ["x"], ["y"], "sine")], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "bad.onnx")
    refuse(f"calibrate bad.onnx{DATA}", "PTQ-PLAN-001", "Sin")

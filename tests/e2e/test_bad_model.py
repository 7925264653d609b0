"""Models that cannot be used: each is refused with its reason, and earlier outputs stay as they were."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.each_case import each_case, table
from tests.unit.plan.graphs import build, serialized

Arrange = Callable[[Path], object]
COMMANDS = ("calibrate", "quantize", "inspect")
AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


class Pickled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def write(name: str, content: bytes | str) -> Arrange:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


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


def use_custom_domain(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].op_type = "Frobnicate"
    proto.graph.node[1].domain = "my.company"
    proto.opset_import.add(domain="my.company", version=1)


DATA = " --data calib.npz"
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


# What makes the model; the words after the command, the code, what the error says, and its hint: one for each
# place that looks at models. All that a format can be refused for is tested in tests/unit/models.
CASES: dict[str, tuple[Arrange, str]] = {
    "missing": (nothing, "nowhere.pt | PTQ-FILE-001 | model 'nowhere.pt' does not exist | check the path"),
    "a name that is too long": (nothing, f"{'x' * 300} | PTQ-FILE-001 | name too long | check the path"),
    "a pickled module": (
        save_pickle,
        "bad.pt | PTQ-MODEL-002 | can run any code | --set model.trust_pickle=true",
    ),
    "arch with other shapes": (
        lambda folder: (folder / "bad.py").write_text(
            (folder / "model.py").read_text().replace("Net()", "Net(16)")
        ),
        "model.pt --arch bad.py:build | PTQ-MODEL-003 "
        "| conv.weight is [8, 3, 3, 3] in the file and [16, 3, 3, 3] in the architecture | trained with",
    ),
    "a loop on values": (
        save_net(LOOP),
        "bad.pt --arch bad.py:Net | PTQ-MODEL-004 | at layer 'inner' | control flow",
    ),
    "a layer that does not take the data": (
        save_net(RAISES_INSIDE),
        "bad.pt --arch bad.py:Net | PTQ-MODEL-007 | at layer 'inner' | shape, dtype",
    ),
}


@each_case("name", CASES)
def test_a_bad_model_is_refused(folder, anew, refuse, name):
    anew()
    arrange, row = CASES[name]
    arrange(folder)
    ((words, code, says, hint),) = table(row)
    commands = COMMANDS if name == "arch with other shapes" else COMMANDS[:1]
    for command in commands:
        refuse(f"{command} {words}{DATA}", code, says, hint=hint)


@pytest.mark.parametrize("command", ["calibrate", "quantize"])
def test_an_operator_that_onnx_runtime_does_not_have(folder: Path, refuse: Any, command: str) -> None:
    edit_onnx(use_custom_domain)(folder)
    refuse(f"{command} bad.onnx{DATA}", "PTQ-RUNTIME-001", "Frobnicate", hint="custom domain")


@each_case("command", COMMANDS[:2])
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
    outcome = ptq("calibrate whole.pt --set model.trust_pickle=true --data images.npz --run new")
    assert outcome.status == 0, outcome


def test_a_model_of_which_nothing_can_be_quantized(folder: Path, refuse: Any) -> None:
    text = "(float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Sin(x) }"
    (folder / "bad.onnx").write_bytes(serialized(build(text)))
    refuse(f"calibrate bad.onnx{DATA}", "PTQ-PLAN-001", "Sin")

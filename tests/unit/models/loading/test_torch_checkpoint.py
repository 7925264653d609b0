"""State dicts with an architecture, and pickled modules."""

import os
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ptq_cli.core.errors import ArchitectureError, EntryPointError, ModelFormatError, PickleError
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.recipe.sections import ModelSettings
from tests.each_case import each_case
from tests.unit.models.contents import noise
from tests.unit.models.loading.sources import SmallNet

ARCH = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

def raises():
    raise ValueError("no weights here")

def needs_argument(width):
    return build()

def returns_dict():
    return {}

not_callable = 3
"""


@pytest.fixture
def arch(tmp_path: Path) -> Path:
    path = tmp_path / "arch.py"
    path.write_text(ARCH)
    return path


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def computes_as(module: torch.nn.Module, path: Path, arch: str | None, **settings: bool) -> bool:
    source = open_model(path, ModelSettings(arch=arch, **settings))
    found = source.run({name: noise(2, 3) for name in source.input_names})
    return bool(torch.equal(torch.from_numpy(found[0]), module(torch.from_numpy(noise(2, 3))).detach()))


def test_safetensors_and_architecture_make_the_module(tmp_path, arch):
    module = network()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    assert computes_as(module, tmp_path / "weights.safetensors", f"{arch}:build")


def test_state_dict_without_architecture_asks_for_it(tmp_path):
    path = saved(tmp_path / "w.pt", network().state_dict())
    with pytest.raises(ArchitectureError) as caught:
        open_model(path, ModelSettings())
    assert caught.value.message == "'w.pt' is a state dict: it has the parameters but not the architecture"
    assert (
        caught.value.hint == "add --arch model.py:build, or arch = 'model.py:build' under [model] in ptq.toml"
    )
    assert caught.value.code == "PTQ-MODEL-003"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "raised ValueError: no weights here"),
        (
            "needs_argument",
            "raised TypeError: needs_argument() missing 1 required positional argument: 'width'",
        ),
        ("not_callable", "is a int, expected a callable"),
        ("biuld", "has no 'biuld' (did you mean 'build'?)"),
    ],
)
def test_architecture_that_cannot_be_called(tmp_path, arch, name, message):
    path = saved(tmp_path / "w.pt", network().state_dict())
    with pytest.raises(EntryPointError) as caught:
        open_model(path, ModelSettings(arch=f"{arch}:{name}"))
    assert caught.value.message.startswith("--arch '")
    assert message in caught.value.message
    assert caught.value.code == "PTQ-ENTRY-001"


def test_architecture_that_returns_no_module(tmp_path, arch):
    path = saved(tmp_path / "w.pt", network().state_dict())
    with pytest.raises(ArchitectureError, match=r"returned a dict, expected a torch\.nn\.Module"):
        open_model(path, ModelSettings(arch=f"{arch}:returns_dict"))


def test_keys_that_do_not_fit_are_named(tmp_path, arch):
    state = network().state_dict()
    state["0.weight"] = torch.zeros(4, 5)
    state["extra"] = state.pop("2.bias")
    path = saved(tmp_path / "w.pt", state)
    with pytest.raises(ArchitectureError) as caught:
        open_model(path, ModelSettings(arch=f"{arch}:build"))
    assert caught.value.message.endswith(
        "missing in the file: 2.bias; not in the architecture: extra; "
        "other shape: 0.weight is [4, 5] in the file and [4, 3] in the architecture"
    )


@each_case("content", [{"epoch": 3}, [torch.zeros(2)], 3, {}], ids=["no_tensor", "list", "int", "empty"])
def test_a_checkpoint_without_parameters_is_refused(tmp_path, content):
    with pytest.raises(ModelFormatError, match="expected a state dict or a module") as caught:
        open_model(saved(tmp_path / "w.pt", content), ModelSettings(arch="arch.py:build"))
    assert f"holds a {type(content).__name__}" in caught.value.message


def test_a_pickled_module_is_refused(tmp_path):
    path = saved(tmp_path / "m.pt", SmallNet())
    with pytest.raises(PickleError) as caught:
        open_model(path, ModelSettings())
    assert "is a pickle that holds more than tensors, and loading it can run any code" in caught.value.message
    assert "--set model.trust_pickle=true" in caught.value.hint
    assert caught.value.code == "PTQ-MODEL-002"


def test_a_trusted_pickled_module_is_loaded_in_evaluation_mode(tmp_path):
    module = SmallNet().train()
    source = open_model(saved(tmp_path / "m.pt", module), ModelSettings(trust_pickle=True))
    image = noise(2, 3, 8, 8)
    expected = module.eval()(torch.from_numpy(image)).detach()
    assert torch.equal(torch.from_numpy(source.run({"image": image})[0]), expected)


def test_a_class_of_a_script_asks_for_a_state_dict_and_arch(tmp_path, monkeypatch):
    script = types.ModuleType("__main__")
    kind = type("Net", (torch.nn.Module,), {"__module__": "__main__"})
    script.Net = kind
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", script)
        path = saved(tmp_path / "m.pt", kind())
    with pytest.raises(ModelFormatError) as caught:
        open_model(path, ModelSettings(trust_pickle=True))
    assert caught.value.message == "'m.pt' cannot be loaded: it needs the class 'Net'"
    assert "model.state_dict(), and pass --arch model.py:build" in caught.value.hint


class Malicious:
    """Runs ``touch`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch '{self.path}'",)


@each_case("inside", [lambda evil: evil, lambda evil: {"state_dict": {"w": torch.zeros(2), "x": evil}}])
@each_case("writer", ["torch", "torch_old", "pickle"])
def test_a_malicious_pickle_does_not_run(tmp_path, inside, writer):
    touched, path = tmp_path / "touched", tmp_path / "m.pt"
    content = inside(Malicious(touched))
    if writer == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=writer == "torch")
    with pytest.raises(PickleError):
        open_model(path, ModelSettings(arch="arch.py:build"))
    assert not touched.exists()


def test_a_damaged_safetensors_file_is_named(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ModelFormatError, match=r"'w\.safetensors' is damaged"):
        open_model(path, ModelSettings(arch="arch.py:build"))

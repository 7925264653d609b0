"""What wraps a state dict when it is saved is taken off, and a note says what was taken.

State dicts with an architecture, and pickled modules.
"""

import os
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel

from ptq_cli.core.errors import ArchitectureError, EntryPointError, ModelFormatError, PickleError
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.models.loading.torch_checkpoint import build_module, has_state_dict, without_wrapper
from ptq_cli.recipe.sections import ModelSettings
from tests.each_case import each_case
from tests.unit.models.contents import noise
from tests.unit.models.loading.sources import SmallNet

ARCH = """
import torch
from torch.nn.utils.parametrizations import weight_norm

def build():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

def normed():
    return torch.nn.Sequential(weight_norm(torch.nn.Linear(3, 4)))

def tied():
    layers = {"table": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)}
    module = torch.nn.ModuleDict(layers)
    module["head"].weight = module["table"].weight
    return module

def wrapped():
    return torch.nn.DataParallel(build())
"""


@pytest.fixture
def arch(tmp_path: Path) -> str:
    path = tmp_path / "arch.py"
    path.write_text(ARCH)
    return f"{path}:"


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).eval()


STATE = dict(network().state_dict())
OTHER = dict(network(1).state_dict())


def under(prefix, state=STATE):
    return {f"{prefix}{key}": value for key, value in state.items()}


REMOVED = "removed from the names of the weights in 'w.pt': "
WRAPPED = {
    "bare": (STATE, []),
    "state_dict": ({"state_dict": STATE, "epoch": 3}, ["'state_dict'"]),
    "model_state_dict": ({"model_state_dict": STATE, "optimizer": {"lr": 0.1}}, ["'model_state_dict'"]),
    "DataParallel": (under("module."), [REMOVED + "'module.'"]),
    "compiled_DataParallel": (under("_orig_mod.module."), [REMOVED + "'module.', '_orig_mod.'"]),
    "chain": ({"model": under("module.module._orig_mod.")}, ["'model'", REMOVED + "'module.', '_orig_mod.'"]),
    "compiled_layer": (
        {key.replace("2.", "2._orig_mod."): value for key, value in STATE.items()},
        [REMOVED + "'_orig_mod.'"],
    ),
    "AveragedModel": (dict(AveragedModel(network()).state_dict()), [REMOVED + "'module.'"]),
    "Lightning": (
        {"state_dict": {**under("model."), "loss.weight": torch.zeros(2)}, "epoch": 1},
        ["'state_dict.model'", REMOVED + "'model.'", "left out, because the architecture has no place"],
    ),
    "no_counters": ({key: value for key, value in STATE.items() if "num_batches" not in key}, []),
    "BasicSR": ({"params": OTHER, "params_ema": STATE}, ["'params_ema' in 'w.pt', not 'params'"]),
    "timm": (
        {
            "state_dict": OTHER,
            "state_dict_ema": under("module."),
            "optimizer": {"state": {0: {"m": torch.ones(2)}}},
        },
        ["'state_dict_ema' in 'w.pt', not 'state_dict'", REMOVED + "'module.'"],
    ),
    "ema_beside_model": (
        {"state_dict": under("model.", OTHER) | under("ema_model.")},
        ["'state_dict.ema_model' in 'w.pt', not 'state_dict.model'", REMOVED + "'ema_model.'"],
    ),
    "plain_name_first": ({"best": OTHER, "model": STATE}, ["'model' in 'w.pt', not 'best', which fits too"]),
}


@each_case("name", list(WRAPPED))
def test_a_wrapped_state_dict_is_loaded_and_said(arch, name):
    content, said = WRAPPED[name]
    module, notes = build_module(f"{arch}build", content, "w.pt")
    x = torch.rand(5, 3)
    assert torch.equal(module(x), network()(x))
    assert len(notes) == len(said)
    assert all(part in note for part, note in zip(said, notes, strict=True))


def test_keys_that_a_module_translates_itself_are_its_own_matter(arch):
    parts = weight_norm(torch.nn.Linear(3, 4))
    state = parts.state_dict()
    older = {
        "0.bias": state["bias"],
        "0.weight_g": state["parametrizations.weight.original0"],
        "0.weight_v": state["parametrizations.weight.original1"],
    }
    module, notes = build_module(f"{arch}normed", older, "w.pt")
    x = torch.rand(5, 3)
    assert torch.equal(module(x), parts(x))
    assert not notes


def test_a_tied_weight_may_be_stored_once(arch):
    table = torch.rand(5, 3)
    module, _ = build_module(f"{arch}tied", {"table.weight": table}, "w.safetensors")
    assert torch.equal(module["head"].weight, table)


def test_an_architecture_may_be_wrapped_itself(arch):
    module, notes = build_module(f"{arch}wrapped", STATE, "w.pt")
    assert isinstance(module, torch.nn.Sequential)
    assert not notes
    assert isinstance(without_wrapper(AveragedModel(torch.nn.DataParallel(network()))), torch.nn.Sequential)


@each_case("content", [{"left": STATE, "right": OTHER}, under("left.") | under("right.", OTHER)])
def test_two_state_dicts_without_telling_names_are_refused(arch, content):
    with pytest.raises(ArchitectureError) as caught:
        build_module(f"{arch}build", content, "w.pt")
    assert caught.value.message.endswith("fits several state dicts of 'w.pt': 'left', 'right'")
    assert caught.value.hint == "save the one to quantize in a file of its own"


def test_the_closest_state_dict_says_what_does_not_fit(arch):
    short = {key: value for key, value in STATE.items() if key != "2.bias"}
    with pytest.raises(ArchitectureError) as caught:
        build_module(
            f"{arch}build", {"loss": {"w": torch.zeros(2)}, "state_dict": under("model.", short)}, "w.pt"
        )
    assert caught.value.message.endswith(
        "does not fit --arch '" + arch + "build': missing in the file: 2.bias"
    )


def test_other_things_of_a_checkpoint_are_not_state_dicts():
    assert not has_state_dict(
        {"epoch": 3, "optimizer": {"state": {0: {"m": torch.ones(2)}, "x": [torch.ones(2)]}}}
    )


TORCH_CHECKPOINT_ARCH = """
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
def torch_checkpoint_arch(tmp_path: Path) -> Path:
    path = tmp_path / "arch.py"
    path.write_text(TORCH_CHECKPOINT_ARCH)
    return path


def torch_checkpoint_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def computes_as(
    module: torch.nn.Module, path: Path, torch_checkpoint_arch: str | None, **settings: bool
) -> bool:
    source = open_model(path, ModelSettings(arch=torch_checkpoint_arch, **settings))
    found = source.run({name: noise(2, 3) for name in source.input_names})
    return bool(torch.equal(torch.from_numpy(found[0]), module(torch.from_numpy(noise(2, 3))).detach()))


def test_safetensors_and_architecture_make_the_module(tmp_path, torch_checkpoint_arch):
    module = torch_checkpoint_network()
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    assert computes_as(module, tmp_path / "weights.safetensors", f"{arch}:build")


def test_state_dict_without_architecture_asks_for_it(tmp_path):
    path = saved(tmp_path / "w.pt", torch_checkpoint_network().state_dict())
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
def test_architecture_that_cannot_be_called(tmp_path, torch_checkpoint_arch, name, message):
    path = saved(tmp_path / "w.pt", torch_checkpoint_network().state_dict())
    with pytest.raises(EntryPointError) as caught:
        open_model(path, ModelSettings(arch=f"{arch}:{name}"))
    assert caught.value.message.startswith("--arch '")
    assert message in caught.value.message
    assert caught.value.code == "PTQ-ENTRY-001"


def test_architecture_that_returns_no_module(tmp_path, torch_checkpoint_arch):
    path = saved(tmp_path / "w.pt", torch_checkpoint_network().state_dict())
    with pytest.raises(ArchitectureError, match=r"returned a dict, expected a torch\.nn\.Module"):
        open_model(path, ModelSettings(arch=f"{arch}:returns_dict"))


def test_keys_that_do_not_fit_are_named(tmp_path, torch_checkpoint_arch):
    state = torch_checkpoint_network().state_dict()
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

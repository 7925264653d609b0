"""What wraps a state dict when it is saved is taken off, and a note says what was taken."""

from pathlib import Path

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel

from ptq_cli.core.errors import ArchitectureError
from ptq_cli.models.loading.torch_checkpoint import build_module, has_state_dict, without_wrapper
from tests.each_case import each_case

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

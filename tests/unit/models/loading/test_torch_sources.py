"""Optional parameters of forward are inputs where the data name them, and nested outputs keep their names."""

import collections
from pathlib import Path

import numpy as np
import pytest
import torch

from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.models.loading.source import ModelKind, SourceFile
from ptq_cli.models.loading.torch_sources import ModuleSource, ProgramSource, TorchScriptSource
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.recipe.sections import ImageSettings, ModelSettings
from ptq_cli.setup.float_model import make_float_model, reading

FILE = SourceFile(Path("model.pt"), ModelKind.CHECKPOINT, "")
IDS = np.arange(8).reshape(2, 4)
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 0]])


class Net(torch.nn.Module):
    """Weights of the networks below."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)


class OneRequired(Net):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None):
        found = self.table(input_ids)
        if attention_mask is not None:
            found = found * attention_mask.unsqueeze(-1)
        return found


class AllOptional(Net):
    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, labels=None, return_dict=None):
        found = self.table(input_ids)
        return found if attention_mask is None else found * attention_mask.unsqueeze(-1)


def scripted(module: torch.nn.Module) -> torch.jit.ScriptModule:
    with quiet_exporter():
        return torch.jit.script(module)


SOURCES = {
    "one_required": lambda: ModuleSource(FILE, OneRequired().eval()),
    "all_optional": lambda: ModuleSource(FILE, AllOptional().eval()),
    "TorchScript": lambda: TorchScriptSource(FILE, scripted(OneRequired().eval())),
}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("one_required", ["input_ids", "attention_mask"]),
        *[
            pytest.param(kind, names, marks=pytest.mark.nightly)
            for kind in SOURCES
            for names in (["input_ids"], ["input_ids", "attention_mask"])
        ],
    ],
)
def test_the_data_say_which_optional_inputs_there_are(tmp_path, kind, names):
    np.savez(tmp_path / "d.npz", **{name: {"input_ids": IDS, "attention_mask": MASK}[name] for name in names})
    dataset = open_dataset(str(tmp_path / "d.npz"), ImageSettings())
    model = make_float_model(reading(SOURCES[kind](), dataset, ModelSettings()), dataset, threads=1)
    assert [spec.name for spec in model.inputs] == names
    assert model.parity is not None and model.parity < 1e-5


@pytest.mark.parametrize("name", ["tokens.npz", "tokens.npy"])
def test_a_sole_array_is_the_first_optional_input(tmp_path, name):
    if name.endswith("npz"):
        np.savez(tmp_path / name, tokens=IDS)
    else:
        np.save(tmp_path / name, IDS)
    dataset = open_dataset(str(tmp_path / name), ImageSettings())
    assert reading(SOURCES["all_optional"](), dataset, ModelSettings()).input_names == ("input_ids",)


def test_shapes_name_optional_inputs_too():
    settings = ModelSettings(input_shape={"input_ids": (1, 4), "attention_mask": (1, 4)})
    assert reading(SOURCES["one_required"](), None, settings).input_names == ("input_ids", "attention_mask")


def test_a_program_that_was_exported_with_none_runs():
    module = OneRequired().eval()
    source = ProgramSource(FILE, torch.export.export(module, (torch.from_numpy(IDS), None)))
    assert source.input_names == ("input_ids",)
    assert np.array_equal(source.run({"input_ids": IDS})[0], module(torch.from_numpy(IDS)).detach().numpy())


class Output(collections.OrderedDict):
    """As Hugging Face's ModelOutput: a mapping that tells PyTorch its values, but not their keys."""


class Nested(Net):
    def __init__(self, form) -> None:
        super().__init__()
        self.form = form

    def forward(self, x):
        return self.form(self.table(x))


@pytest.fixture
def registered():
    torch.utils._pytree.register_pytree_node(
        Output,
        lambda output: (list(output.values()), list(output)),
        lambda values, keys: Output(zip(keys, values, strict=True)),
    )
    yield
    torch.utils._pytree._deregister_pytree_node(Output)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("form", "names"),
    [
        (lambda x: Output(logits=x, states=(x + 1, x + 2)), ["logits", "states.0", "states.1"]),
        *[
            pytest.param(form, names, marks=pytest.mark.nightly)
            for form, names in (
                (lambda x: {"a": x, "b": {"c": x + 1, "d": x + 2}}, ["a", "b.c", "b.d"]),
                (lambda x: {"a": x, "b": [x + 1, {"c": x + 2}]}, ["a", "b", "b.c"]),
                (lambda x: {"a": [x, x + 1]}, ["a.0", "a.1"]),
                (lambda x: ({"a": x}, {"a": x + 1}), ["0.a", "1.a"]),
            )
        ],
    ],
)
def test_nested_outputs_keep_their_names(form, names):
    model = ModuleSource(FILE, Nested(form).eval()).to_onnx({"x": IDS})
    assert [value.name for value in model.graph.outputs] == names

"""From a module, a program or TorchScript to one ONNX graph that computes the same."""

import re

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from ptq_cli.core.errors import ExportError, ModelInputError
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.models.loading.torch_export import to_tensors
from ptq_cli.models.parity import require_parity
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.recipe.sections import ModelSettings
from tests.unit.models.contents import names, noise, operators
from tests.unit.models.loading.sources import SmallNet, prepared, source_of
from tests.unit.plan.graphs import quantized, run, sqnr_db

nn = torch.nn


def agrees(module: nn.Module, model: ir.Model, **inputs: np.ndarray) -> float:
    outputs = [value.name or "" for value in model.graph.outputs]
    return require_parity(source_of(module).run(inputs), run(model, inputs), outputs, "model.pt")


@pytest.mark.parametrize("example_batch", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_batch_is_dynamic(example_batch):
    module = SmallNet()
    model = prepared(module, image=noise(example_batch, 3, 8, 8))
    assert not isinstance(model.graph.inputs[0].shape[0], int)
    for batch in (1, 2, 7):
        assert agrees(module, model, image=noise(batch, 3, 8, 8, seed=batch)) < 1e-4


def test_a_batch_that_cannot_be_dynamic_is_fixed_to_one():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(2, -1) if x.shape[0] == 2 else x.reshape(1, -1)

    model = prepared(Fixed(), x=noise(1, 3, 4))
    assert list(model.graph.inputs[0].shape) == [1, 3, 4]
    assert agrees(Fixed(), model, x=noise(1, 3, 4)) == 0.0


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else x


class Eigenvalues(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x).real


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        (Branches, "GuardOnDataDependentSymNode"),
        (Eigenvalues, "No ONNX function found for <OpOverload(op='aten.linalg_eig'"),
    ],
    ids=["control_flow", "operator_without_onnx_form"],
)
def test_a_layer_that_cannot_be_exported_is_named(layer, cause):
    module = nn.Sequential()
    module.add_module("encoder", nn.Sequential(nn.Linear(8, 8), layer()))
    with pytest.raises(ExportError) as caught:
        source_of(module).to_onnx({"input": noise(4, 8, 8)})
    assert caught.value.message.startswith("'model.pt' cannot be exported to ONNX at layer 'encoder.1': ")
    assert cause in caught.value.message
    assert caught.value.code == "PTQ-MODEL-004"
    assert "\n" not in caught.value.message
    assert "pass that file" in caught.value.hint


def test_an_error_of_the_module_itself_is_reported():
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError("only 4 channels")

    with pytest.raises(ExportError, match="at layer 'head': ValueError: only 4 channels"):
        module = nn.Sequential()
        module.add_module("head", Raises())
        source_of(module).to_onnx({"input": noise(2, 3)})


def test_a_dtype_that_torch_lacks_is_named():
    with pytest.raises(ModelInputError, match="PyTorch does not have the dtype of an input") as caught:
        to_tensors({"x": np.array(["a"])})
    assert caught.value.code == "PTQ-MODEL-007"


def test_export_is_silent_and_tells_nothing_of_the_machine(capfd, recwarn):
    # The table of operators is what the exporter makes most noise about, and it makes it for the first model.
    ONNXRegistry.from_torchlib.cache_clear()
    model = prepared(SmallNet(), image=noise(2, 3, 8, 8))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    content = ir.to_proto(model).SerializeToString()
    assert b".py" not in content
    assert b"stack_trace" not in content
    assert b"pkg.torch" not in content
    assert not model.metadata_props
    assert all(not node.metadata_props and not node.doc_string for node in model.graph)


def test_layers_are_named_for_their_modules():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, 4, 1)
            self.second = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return torch.relu(x + self.second(torch.relu(self.first(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.stages = nn.Sequential(Block(), Block())
            self.project = nn.Linear(4, 3)

        def forward(self, x):
            return self.project(self.stages(self.stem(x)).mean((2, 3))[:, None])

    model = prepared(Net(), x=noise(2, 3, 8, 8))
    found = names(model)
    assert found[0] == "stem"
    assert {"stages.0.first", "stages.0.second", "stages.1.first", "stages.0/Relu", "stages.1/Add"} <= set(
        found
    )
    assert {"project", "project/Add", "GlobalAveragePool"} <= set(found)
    assert len(set(found)) == len(found)


@pytest.mark.nightly
def test_made_up_names_are_gone():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.memory = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x):
            left, right = torch.chunk(self.layer(x), 2, dim=1)
            return {"result": self.memory(left * right)[0]}

    model = prepared(Attention(), x=noise(2, 4, 8))
    values = [value.name or "" for node in model.graph for value in node.outputs]
    values += [*model.graph.initializers, *names(model)]
    made_up = re.compile(r"(^|/|\.)(val|node|getitem|_empty_nn|linear|add|mul|view|permute|split)_\w*\d")
    assert [name for name in values if made_up.search(name)] == []
    assert not any("metadata_hook" in name for name in values)


class Named(nn.Module):
    """Its output's keys are its layers' names, the other way round where ``swapped``."""

    def __init__(self, embedding: nn.Module, *, swapped: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = nn.Linear(8, 8)
        self.swapped = swapped

    def forward(self, x):
        embedded = self.embedding(x)
        if self.swapped:
            return {"head": embedded, "embedding": self.head(embedded)}
        return {"embedding": embedded, "head": self.head(embedded)}


EMBEDDING = (lambda: nn.Embedding(10, 8), np.arange(12).reshape(4, 3) % 10)
LINEAR = (lambda: nn.Linear(8, 8), noise(4, 3, 8))


@pytest.mark.parametrize(
    ("layer", "example", "swapped"),
    [
        (*LINEAR, True),
        *[pytest.param(*rest, marks=pytest.mark.nightly) for rest in ((*LINEAR, False), (*EMBEDDING, False))],
        pytest.param(*EMBEDDING, True, marks=pytest.mark.nightly),
    ],
)
def test_outputs_are_named_by_the_keys_of_the_dictionary(layer, example, swapped):
    module = Named(layer(), swapped=swapped)
    model = prepared(module, x=example)
    expected = ["head", "embedding"] if swapped else ["embedding", "head"]
    assert [value.name for value in model.graph.outputs] == expected
    assert agrees(module, model, x=example) < 1e-4
    result = quantized(model)
    assert [value.name for value in result.graph.outputs] == expected
    assert [array.shape for array in run(result, {"x": example})] == [
        array.shape for array in run(model, {"x": example})
    ]


class Odd(nn.Module):
    """Returns an input, a buffer, a parameter and one value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        y = self.linear(x)
        return y, x, self.table, y, self.linear.weight


def test_outputs_that_are_inputs_constants_or_repeated():
    module = Odd()
    model = prepared(module, x=noise(4, 8))
    assert [value.name for value in model.graph.inputs] == ["x"]
    outputs = [value.name for value in model.graph.outputs]
    assert len(set(outputs)) == 5
    assert outputs[1] == "x_output"
    assert agrees(module, model, x=noise(4, 8)) < 1e-4
    result = quantized(model)
    for reference, other in zip(run(model, {"x": noise(4, 8)}), run(result, {"x": noise(4, 8)}), strict=True):
        assert sqnr_db(reference, other) > 20.0


def test_a_dictionary_key_that_is_an_inputs_name():
    class Echo(nn.Module):
        def forward(self, x):
            return {"x": x * 2, "y": x + 1}

    model = prepared(Echo(), x=noise(4, 8))
    assert [value.name for value in model.graph.outputs] == ["x_output", "y"]
    assert agrees(Echo(), model, x=noise(4, 8)) == 0.0


def test_a_program_keeps_its_dynamic_axes(tmp_path):
    module = SmallNet().eval()
    shapes = ({0: torch.export.Dim("n"), 2: torch.export.Dim("height", min=4, max=512)},)
    with quiet_exporter():
        torch.export.save(
            torch.export.export(module, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=shapes), tmp_path / "m.pt2"
        )
    source = open_model(tmp_path / "m.pt2", ModelSettings())
    model = prepare(source.to_onnx({}), "m.pt2")
    assert [value.name for value in model.graph.inputs] == ["image"]
    assert agrees(module, model, image=noise(5, 3, 11, 8)) < 1e-4
    assert "conv" in names(model)


def test_torchscript_is_exported_with_a_dynamic_batch(tmp_path, capfd, recwarn):
    module = SmallNet().eval()
    with quiet_exporter():
        torch.jit.save(torch.jit.script(module), tmp_path / "m.pt")
    source = open_model(tmp_path / "m.pt", ModelSettings())
    assert source.input_names == ("image",)
    model = prepare(source.to_onnx({"image": noise(2, 3, 8, 8)}), "m.pt")
    for batch in (1, 5):
        image = noise(batch, 3, 8, 8)
        found = run(model, {"image": image})
        assert require_parity(source.run({"image": image}), found, ["y"], "m.pt") < 1e-4
        assert agrees(module, model, image=image) < 1e-4
    assert "conv" in names(model)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_torchscript_that_cannot_be_exported_says_why(tmp_path):
    with quiet_exporter():
        torch.jit.save(torch.jit.script(Eigenvalues()), tmp_path / "m.pt")
    source = open_model(tmp_path / "m.pt", ModelSettings())
    with pytest.raises(ExportError, match=r"'m\.pt' cannot be exported to ONNX: .*linalg_eig"):
        source.to_onnx({"x": noise(2, 4, 4)})


def test_inputs_with_defaults_are_left_out():
    class Optional(nn.Module):
        def forward(self, x, scale: float = 2.0, *, mask=None):
            return x * scale if mask is None else x * mask

    source = source_of(Optional())
    assert source.input_names == ("x",)
    model = prepare(source.to_onnx({"x": noise(4, 3)}), "m")
    assert operators(model) == ["Mul"]


class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).mean(1)


def test_token_ids_beyond_the_table_are_named(tmp_path):
    ids, path = torch.zeros(2, 5, dtype=torch.int64), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Embedded(), (ids,)), path)
    with pytest.raises(ModelInputError, match="does not accept the first batch of the data") as caught:
        open_model(path, ModelSettings()).run({"ids": np.full((2, 5), 30)})
    assert caught.value.hint.startswith("an index in the data is larger than the model's table")

"""Files that can saturate on x86 without VNNI are named on any processor, and warned of where they would."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ptq_cli.evaluation import verification as file_saturation
from ptq_cli.evaluation.document.report_document import SaturatingLayer, Saturation
from ptq_cli.evaluation.verification import saturates_here
from ptq_cli.plan.target.target_file import load_target
from tests.e2e.conftest import Ptq

UNSAFE = "2 of 2 layers can saturate on x86 without VNNI (conv: 144 of 144 pairs, 8 of 8 channels)"
HERE = "2 of 2 layers can saturate on this processor, which has no VNNI"
REMEDY = "makes its sums exact on every processor, without data"


@pytest.fixture(autouse=True)
def unsafe(folder: Path) -> None:
    """The run's quantized model with weights of 127 and of 64, as other tools and earlier versions write."""
    model = onnx.load("ptq-run/model_int8.onnx")
    for name, value in (("unsafe", 127), ("safe", 64)):
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1:
                array = np.full(tuple(tensor.dims), value, np.int8)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        onnx.save(model, f"{name}.onnx")


@pytest.fixture
def old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_saturation, "is_signed_exact", lambda: False)


@pytest.fixture
def new_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_saturation, "is_signed_exact", lambda: True)


def test_verify_counts_the_layers_and_has_a_gate(ptq: Ptq, new_processor: None) -> None:
    outcome = ptq("verify unsafe.onnx")
    assert (outcome.status, f"sums: {UNSAFE}" in outcome.out) == (0, True)
    assert f"hint: ptq repair unsafe.onnx {REMEDY}" in outcome.err
    assert ptq("verify unsafe.onnx --require-portable").status == 3
    Path("ptq.toml").write_text('[gate]\nrequire_portable = true\n[model]\npath = "model.onnx"\n')
    values = json.loads(ptq("verify unsafe.onnx --recipe ptq.toml --json").out)
    assert (values["verdict"], values["saturates_here"], values["require_portable"]) == ("fail", False, True)
    assert [item["name"] for item in values["saturation"]["saturating"]] == ["conv", "fc"]
    outcome = ptq("verify safe.onnx --require-portable")
    assert outcome.status == 0, outcome
    assert "sums: 0 of 2 layers can saturate on x86 without VNNI; required: none" in outcome.out
    assert REMEDY not in outcome.err


def test_verify_passes_no_file_that_can_saturate_here(ptq: Ptq, old_processor: None) -> None:
    outcome = ptq("verify unsafe.onnx")
    assert (outcome.status, HERE in outcome.err, REMEDY in outcome.err) == (3, True, True)
    assert ptq("verify safe.onnx").status == 0


def test_evaluate_has_the_gate_in_all_that_it_writes(ptq: Ptq, new_processor: None) -> None:
    outcome = ptq("evaluate unsafe.onnx --require-portable")
    assert (outcome.status, UNSAFE in outcome.out, HERE in outcome.err) == (3, True, False)
    report = json.loads(Path("ptq-run/report.json").read_text())
    assert [(gate["kind"], gate["value"], gate["passed"]) for gate in report["gates"]] == [
        ("require_portable", 2.0, False)
    ]
    assert 'failures="1"' in Path("ptq-run/junit.xml").read_text()
    for name in ("report.md", "report.html"):
        text = Path("ptq-run", name).read_text()
        assert "2 of 2 layers can saturate on x86 without VNNI" in text
    assert ptq("gate ptq-run/report.json --require-portable").status == 3
    assert ptq("evaluate safe.onnx --require-portable").status == 0
    assert ptq("gate ptq-run/report.json --require-portable").status == 0


@pytest.mark.parametrize("command", ["evaluate {}", "bench {} --runs 3", "analyze {}"])
def test_who_measures_here_is_warned_and_sent_to_no_other_remedy(ptq, old_processor, command):
    outcome = ptq(command.format("unsafe.onnx"))
    assert outcome.status == 0, outcome
    assert outcome.err.count(HERE) == 1
    assert REMEDY in outcome.err
    hints = [line for line in (outcome.out + outcome.err).splitlines() if line.startswith(("hint", "to try"))]
    assert not [line for line in hints if "--" in line], hints
    assert "can saturate on this processor" not in ptq(command.format("safe.onnx")).err


def test_files_of_other_runtimes_are_warned_of_unless_their_activations_are_signed(old_processor):
    layer = SaturatingLayer(name="conv", op="Conv", pairs=1, of_pairs=2, channels=1, of_channels=2)
    generic = load_target("generic")
    unsigned = replace(generic, activation=replace(generic.activation, format="uint8"))
    found = [
        saturates_here(Saturation(1, (layer,)), target)
        for target in (load_target("ort-cpu"), unsigned, generic, load_target("tensorrt"))
    ]
    assert found == [True, True, False, False]

"""The target qnn as a stranger uses it: with Qualcomm's simulator where it is installed, and without."""

import importlib.util
import json

import onnx
import pytest

from ptq_cli.runtime import qnn

QUANTIZE = (
    "quantize model.onnx --data calib.npz --target qnn --set runtime.threads=1 "
    "--set model.input_shape.batch=1"
)
INSTALL = "pip install 'ptq-cli[qnn]'"
needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec(qnn.MODULE) is None, reason="needs onnxruntime-qnn, Qualcomm's simulator"
)


@pytest.fixture
def hidden(monkeypatch):
    monkeypatch.setattr(qnn, "MODULE", "no_such_package")


def test_an_open_batch_is_refused_with_what_closes_it(refuse):
    words = QUANTIZE.replace(" --set model.input_shape.batch=1", "")
    refuse(
        words,
        "PTQ-MODEL-007",
        "takes static shapes, and axis 0 of input 'x'",
        hint="--set model.input_shape.batch=1",
    )


def test_without_the_simulator_a_model_is_written_and_verify_says_what_is_unproven(
    folder, ptq, refuse, hidden
):
    made = ptq(QUANTIZE)
    assert made.status == 0, made.err
    assert "quantized 5 of 5 layers for qnn" in made.out and "integer kernels" not in made.out
    graph = onnx.load(folder / "ptq-run/model_int8.onnx").graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1

    proof = ptq("verify")
    assert proof.status == 0, proof.err
    assert "target qnn, checked against its rules only" in proof.out
    assert "warning: unproven: where the HTP places each operator" in proof.out and INSTALL in proof.out
    assert "where the HTP" in json.loads(ptq("verify --json").out)["unproven"]

    for words in ("evaluate --data eval.npz --min cosine=0.99", "analyze --data eval.npz"):
        assert ptq(words).status == 0, "it takes one sample at a time"
    for words in ("export --context ctx.onnx --target qnn", "evaluate --data eval.npz --engine qnn"):
        refuse(words, "PTQ-RUNTIME-005", "the HTP simulator is not installed", hint=INSTALL)
    refuse("export --context ctx.onnx --target ort-cpu", "PTQ-USAGE-001", "is for the target qnn", hint="qnn")


@needs_simulator
def test_a_model_is_verified_evaluated_and_compiled_on_the_simulator(folder, ptq):
    made = ptq(QUANTIZE)
    assert made.status == 0, made.err
    assert "integer kernels on the HTP simulator: 1 Conv, 1 Gemm" in made.out

    values = json.loads(ptq("verify --json").out)
    assert (values["verdict"], values["unproven"], values["integer_share"]) == ("pass", "", 1.0)
    placed = {item["name"]: item["kernel"] or item["placement"] for item in values["operators"]}
    assert placed == {"conv": "HTP", "relu": "part", "pool": "HTP", "Reshape": "HTP", "fc": "HTP"}
    assert values["kernel_comparison"]["kernels"] and not values["kernel_comparison"]["fault"]

    assert ptq("evaluate --data eval.npz --min cosine=0.99 --set runtime.threads=1").status == 0
    exported = ptq("export --context ctx.onnx")
    assert exported.status == 0, exported.err
    assert "wrote ctx.onnx, compiled for the HTP alone" in exported.out
    assert [node.op_type for node in onnx.load(folder / "ctx.onnx").graph.node] == ["EPContext"]


@needs_simulator
def test_16_bits_are_an_override_that_pairs_convert(folder, ptq):
    made = ptq(f"{QUANTIZE} --set override=fc:activations.dtype=uint16")
    assert made.status == 0, made.err
    values = json.loads(ptq("verify --json").out)
    assert (values["verdict"], values["opset"], values["integer_share"]) == ("pass", 21, 1.0)
    assert ".uint16/QuantizeLinear" in str(onnx.load(folder / "ptq-run/model_int8.onnx").graph.node)

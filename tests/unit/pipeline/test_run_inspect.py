"""inspect reads a float model and a quantized one, with the work and the formats of each layer."""

import numpy as np
import onnx
import pytest

from ptq_cli.pipeline.run_calibrate import run_calibrate
from ptq_cli.pipeline.run_export import run_export
from ptq_cli.pipeline.run_inspect import run_inspect
from ptq_cli.setup.resolve import Request
from tests.graphs import parsed


def test_a_float_model_shows_what_would_be_quantized(folder, request_with):
    found = run_inspect(request_with())
    (layer,) = found.plan.layers
    assert (found.quantized, layer.quantized, found.parameters) == (False, True, 24)
    assert str(found.formats[layer.name]) == "uint8 x int8"
    assert (found.work.counts[layer.name], found.work.total) == (24, 24)
    assert found.work.assumed == {"x[0]": 1}


def test_a_quantized_model_shows_what_is_quantized(finished):
    found = run_inspect(Request(settings={}, model=finished.quantized_model))
    (layer,) = found.plan.layers
    assert (found.quantized, layer.op, layer.quantized, layer.parameters) == (True, "Gemm", True, 24)
    assert str(found.formats[layer.name]) == "uint8 x int8"
    assert found.work.total == 24


def test_what_unpacks_a_weight_of_4_bits_is_no_layer(run, request_with):
    run_calibrate(request_with(), run)
    run_export(request_with(weight_bits=4), run)
    found = run_inspect(Request(settings={}, model=run.quantized_model))
    (layer,) = found.plan.layers
    assert (layer.op, layer.parameters, str(found.formats[layer.name])) == ("Gemm", 24, "uint8 x int4")


def test_the_shape_that_was_given_is_counted(folder, request_with):
    found = run_inspect(request_with(input_shape={"x": [7, 4]}))
    assert (found.work.total, found.work.assumed) == (24, {})


FLATTENED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,2,2] x) => (float[N,6] y)
    <int64[2] k = {0, 4}> {
    f = Reshape(x, k) y = Gemm(f, w) }"""


@pytest.fixture
def flattened(folder):
    def save(batch):
        weight = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
        onnx.save(parsed(FLATTENED.replace("N", batch), {"w": weight}), folder / "flattened.onnx")
        np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((12, 2, 2)).astype(np.float32))
        return folder / "flattened.onnx"

    return save


def test_a_model_that_fixes_its_batch_is_counted_for_one_sample(flattened):
    path = flattened("3")
    assert run_inspect(Request(settings={}, model=path)).work.total == 24
    assert run_inspect(Request(settings={"input_shape": {"x": [3, 2, 2]}}, model=path)).work.total == 24


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target": "tensorrt"},
        {"weight_bits": 4},
        {"weight_quantizer": "dorefa"},
        {"weight_quantizer": "centers"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_parameters_are_those_of_the_float_model_however_they_are_stored(flattened, run, settings):
    request = Request(settings={"data": "x.npy", **settings}, model=flattened("N"))
    assert run_inspect(request).parameters == 24  # The shape that a Reshape reads is none.
    run_calibrate(request, run)
    run_export(request, run)
    found = run_inspect(Request(settings={}, model=run.quantized_model))
    assert found.parameters == 24
    assert [layer.parameters for layer in found.plan.layers if layer.op == "Gemm"] == [24]


def test_a_model_of_which_nothing_can_be_quantized_is_shown_with_its_reasons(folder, request_with):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[S,N,8] x) => (float[S,1,N,6] y)
        { [rnn] y = LSTM<hidden_size=6>(x, w, r) }"""
    weights = {name: np.ones((1, 24, width), np.float32) for name, width in (("w", 8), ("r", 6))}
    onnx.save(parsed(text, weights), folder / "lstm.onnx")
    found = run_inspect(Request(settings={"input_shape": {"x": [1, 1, 8]}}, model=folder / "lstm.onnx"))
    (layer,) = found.plan.layers
    assert (layer.quantized, found.parameters, found.work.total) == (False, 336, 336)
    assert layer.reason == "its weights are too small for integers to make the file smaller"
    everything = run_inspect(request_with(exclude=["*"]))
    assert [item.reason for item in everything.plan.layers] == ["kept in float: exclude match = '*'"]


@pytest.mark.parametrize("target", ["ort-cpu", "generic", "tensorrt"])
@pytest.mark.parametrize(("shape", "kept"), [("N", False), ("4", False), ("4,5", False), ("N,5", True)])
def test_the_layers_of_a_quantized_model_are_counted_as_those_of_the_float_one(
    folder, run, shape, kept, target
):
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{shape},16] x) => (float[{shape},8] y)
        {{ [product] h = MatMul(x, w) [bias] s = Add(h, b) [end] y = Sigmoid(s) }}"""
    random = np.random.default_rng(0)
    arrays = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"w": (16, 8), "b": 8}.items()
    }
    onnx.save(parsed(text, arrays), folder / "linear.onnx")
    sizes = [*map(int, shape.replace("N", "4").split(",")), 16]
    np.savez(folder / "linear.npz", x=random.standard_normal(sizes).astype(np.float32))
    request = Request(settings={"data": "linear.npz", "target": target}, model=folder / "linear.onnx")
    run_calibrate(request, run)
    exported = {layer.name: layer.quantized for layer in run_export(request, run).plan.layers}
    found = run_inspect(Request(settings={"target": target}, model=run.quantized_model))
    assert {layer.name: layer.quantized for layer in found.plan.layers} == exported
    assert exported["bias"] is (target != "tensorrt" and not kept)

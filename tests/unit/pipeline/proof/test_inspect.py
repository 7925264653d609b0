"""inspect reads a float model and a quantized one, with the work and the formats of each layer."""

from ptq_cli.pipeline.calibration.calibrate import run_calibrate
from ptq_cli.pipeline.exporting.export import run_export
from ptq_cli.pipeline.proof.inspect import run_inspect
from ptq_cli.pipeline.resolve import Request


def test_a_float_model_shows_what_would_be_quantized(folder, request_with):
    found = run_inspect(request_with())
    (layer,) = found.plan.layers
    assert (found.quantized, layer.quantized, found.parameters) == (False, True, 24)
    assert str(found.formats[layer.name]) == "uint8 x int8"
    assert (found.work.counts[layer.name], found.work.total) == (24, 24)
    assert found.work.assumed == {"x[0]": 1}


def test_a_quantized_model_shows_what_is_quantized(finished):
    found = run_inspect(Request({}, finished.quantized_model))
    (layer,) = found.plan.layers
    assert (found.quantized, layer.op, layer.quantized, layer.parameters) == (True, "Gemm", True, 24)
    assert str(found.formats[layer.name]) == "uint8 x int8"
    assert found.work.total == 24


def test_what_unpacks_a_weight_of_4_bits_is_no_layer(run, request_with):
    run_calibrate(request_with(), run)
    run_export(request_with(weight_bits=4), run)
    found = run_inspect(Request({}, run.quantized_model))
    (layer,) = found.plan.layers
    assert (layer.op, layer.parameters, str(found.formats[layer.name])) == ("Gemm", 24, "uint8 x int4")


def test_the_shape_that_was_given_is_counted(folder, request_with):
    found = run_inspect(request_with(input_shape={"x": [7, 4]}))
    assert (found.work.total, found.work.assumed) == (24, {})

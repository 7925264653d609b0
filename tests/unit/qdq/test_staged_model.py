"""Stages: where both models are cut, and that they are the models.

A model with one layer changed, beside one that is written by hand; stages in rows.
"""

from pathlib import Path

import numpy as np
import pytest

from ptq_cli.core.arithmetic import fake_quantize
from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.storing import store_model
from ptq_cli.qdq.read.constant_values import constant_values
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import Stage, StagedModel, cut_stages
from tests.unit.plan.graphs import build, run, sample
from tests.unit.qdq.twins import CHAIN, RESIDUAL, Twins, make_twins


def shown(stages: tuple[Stage, ...]) -> list[str]:
    return [
        f"{', '.join(stage.inputs)} -> {' '.join(stage.nodes)} -> {', '.join(stage.outputs)}"
        + (f" [{stage.layer}]" if stage.layer else "")
        for stage in stages
    ]


def test_a_chain_is_cut_at_its_pairs() -> None:
    assert shown(make_twins(CHAIN).stages) == [
        "x -> first r1 -> r1 [first]",
        "r1 -> second r2 -> r2 [second]",
        "r2 -> third -> c3 [third]",
        "c3, r1 -> join -> sum [join]",
        "sum -> pool -> pool [pool]",
        "pool -> flat -> flat [flat]",
        "flat -> last -> y [last]",
    ]


def test_a_stream_of_floats_is_cut_where_several_read_it() -> None:
    assert shown(make_twins(RESIDUAL).stages) == [
        "x -> norm -> norm",
        "norm -> up up_bias -> a1 [up]",
        "a1 -> act -> act",
        "act -> down -> m2 [down]",
        "m2, x -> stream -> stream",
        "stream -> norm2 -> norm2",
        "norm2 -> out -> m3 [out]",
        "m3, stream -> y -> y",
    ]


@pytest.mark.parametrize("text", [CHAIN, RESIDUAL], ids=["chain", "residual"])
def test_stages_in_turn_are_the_models(text: str) -> None:
    twins = make_twins(text)
    inputs = sample(build(text), seed=3)
    output = twins.graphs.float_model.graph.outputs[0].name or ""
    floats = twins.staged.run(inputs, quantized=False)[output]
    integers = twins.staged.run(inputs, quantized=True)[output]
    wanted = run(twins.graphs.float_model, inputs)[0]
    np.testing.assert_allclose(twins.staged.floats(output, floats), wanted, rtol=1e-4, atol=1e-5)
    # Integer kernels leave no room for another order of additions.
    assert np.array_equal(twins.staged.floats(output, integers), run(twins.graphs.quantized_model, inputs)[0])


def test_what_nobody_reads_is_no_stage() -> None:
    text = """(float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> {
        unread = Relu (x)
        [fc] y = MatMul (x, w)
    }"""
    assert shown(make_twins(text).stages) == ["x -> fc -> y [fc]"]


def test_a_model_of_other_operators_is_refused() -> None:
    twins, other = make_twins(CHAIN), make_twins(RESIDUAL)
    with pytest.raises(InvalidOnnxError, match="not have the operators of the float model"):
        cut_stages(TwinGraphs(other.graphs.float_model, twins.graphs.quantized_model), set())


def test_constants_outside_the_graph_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptq_cli.models.files.storing.SMALLEST_EXTERNAL", 100)
    twins, inputs = make_twins(CHAIN), sample(build(CHAIN), seed=3)
    models = {"float": twins.graphs.float_model, "int8": twins.graphs.quantized_model}
    files = {name: ConstantsFile(tmp_path, f"{name}.onnx") for name in models}
    stored = [store_model(model, tmp_path, f"{name}.onnx", files[name]) for name, model in models.items()]
    graphs = TwinGraphs(*(item.load() for item in stored))
    stages = cut_stages(graphs, {"first", "second", "third", "last"})
    assert stages[0].floating.model.data == stored[0].data
    staged = StagedModel(stages, graphs.pairs, "y")
    for form in (False, True):
        found, wanted = (item.run(inputs, quantized=form)["y"] for item in (staged, twins.staged))
        assert np.array_equal(staged.floats("y", found), staged.floats("y", wanted))


DENSE = """(float[n, 6] x) => (float[n, 4] y) <float[6, 5] w1, float[5, 7] w2, float[7, 4] w3> {
    [a] h1 = MatMul (x, w1)
    [b] h2 = MatMul (h1, w2)
    [c] y = MatMul (h2, w3)
}"""


WEIGHTS = {"a": ("x", "w1"), "b": ("h1", "w2"), "c": ("h2", "w3")}


def by_hand(twins: Twins, x: Array, quantized: set[str]) -> Array:
    """The output with some layers quantized: what each reads and gives, and its weight, as the file says."""
    constants = {item.tensor: constant_values(twins.graphs, item) for item in twins.graphs.constants}
    value = x
    before = ""
    for layer, (tensor, weight) in WEIGHTS.items():
        found = constants[weight]
        if {layer, before} & quantized:
            value = fake_quantize(value, twins.graphs.pairs[tensor].parameters)
        value = value @ (found.values if layer in quantized else found.floats)
        before = layer
    return value


@pytest.mark.parametrize("layer", WEIGHTS)
def test_only_one_layer_quantized(layer: str) -> None:
    twins = make_twins(DENSE)
    inputs = sample(build(DENSE), seed=5)
    base = twins.staged.run(inputs, quantized=False)
    found = twins.staged.changed(layer, base, quantized=True)
    np.testing.assert_allclose(found, by_hand(twins, inputs["x"], {layer}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", WEIGHTS)
def test_only_one_layer_left_float(layer: str) -> None:
    twins = make_twins(DENSE)
    inputs = sample(build(DENSE), seed=5)
    base = twins.staged.run(inputs, quantized=True)
    found = twins.staged.changed(layer, base, quantized=False)
    expected = by_hand(twins, inputs["x"], set(WEIGHTS) - {layer})
    steps = np.abs(found - expected) / float(np.abs(expected).max())
    assert np.median(steps) < 1e-5, "but for a value that rounds to the other side"
    assert steps.max() < 0.02


def test_only_what_is_behind_a_layer_runs_again() -> None:
    staged = make_twins(CHAIN).staged
    assert staged.behind("last") == (6,)
    assert staged.behind("third") == (2, 3, 4, 5, 6)
    assert staged.behind("first") == (0, 1, 2, 3, 4, 5, 6)


def test_a_layer_beside_the_output_runs_alone() -> None:
    text = """(float[n, 8] x) => (float[n, 4] y, float[n, 4] z) <float[8, 4] w1, float[8, 4] w2> {
        [judged] y = MatMul (x, w1)
        [other] z = MatMul (x, w2)
    }"""
    twins = make_twins(text)
    inputs = sample(build(text))
    base = twins.staged.run(inputs, quantized=False)
    assert twins.staged.behind("other") == (twins.staged.layers["other"],)
    assert np.array_equal(
        twins.staged.changed("other", base, quantized=True), run(twins.graphs.float_model, inputs)[0]
    )


@pytest.mark.parametrize("text", [CHAIN, RESIDUAL], ids=["chain", "residual"])
@pytest.mark.parametrize("together", [2, 3, 16])
def test_stages_in_rows_are_the_stages(text: str, together: int) -> None:
    twins = make_twins(text)
    model = twins.graphs.float_model
    staged = StagedModel(
        cut_stages(TwinGraphs(model, model), (), twins.graphs.pairs), {}, model.graph.outputs[0].name or ""
    )
    base = staged.run(sample(build(text), seed=7), quantized=False)
    grids = {name: pair.parameters for name, pair in twins.graphs.pairs.items()}
    several = [{name: parameters} for name, parameters in grids.items()] + [grids]
    wanted = [staged.on_grids(chosen, base) for chosen in several]
    staged.join(model, together)
    for chosen, expected in zip(several, wanted, strict=True):
        for name, found in staged.on_grids(chosen, base).items():
            np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)

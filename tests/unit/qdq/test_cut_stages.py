"""Stages: where both models are cut, and that they are the models."""

from pathlib import Path

import numpy as np
import pytest

from ptq_cli.core.errors import InvalidOnnxError
from ptq_cli.models.files.mapped_constants import ConstantsFile
from ptq_cli.models.files.storing import store_model
from ptq_cli.qdq.cut_stages import Stage, cut_stages
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import StagedModel
from tests.unit.plan.graphs import build, run, sample
from tests.unit.qdq.twins import CHAIN, RESIDUAL, make_twins


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

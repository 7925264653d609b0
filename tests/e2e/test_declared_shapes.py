"""Files whose shapes are not what the graph computes, and outputs whose samples are not on axis 0."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ptq_cli
from ptq_cli.core.tensors import Array

SEED = np.random.default_rng(3)
DATA: Array = SEED.standard_normal((24, 3, 4, 12)).astype(np.float32)
WEIGHTS = {
    "w": SEED.standard_normal((4, 3, 3, 3)).astype(np.float32),
    "v": SEED.standard_normal((16, 5)).astype(np.float32),
}
HEAD = "<float[4,3,3,3] w, float[16,5] v>"
STEPS_FIRST = """{
    c = Conv<pads=[1,1,1,1]>(x, w)
    t = Transpose<perm=[3,0,1,2]>(c)
    size = Shape(t)
    none = Constant<value = int64[1] {0}>()
    two = Constant<value = int64[1] {2}>()
    rest = Constant<value = int64[1] {-1}>()
    kept = Slice(size, none, two)
    wanted = Concat<axis=0>(kept, rest)
    r = Reshape(t, wanted)
    m = MatMul(r, v)
    own = Shape(m)
    y = Reshape(m, own)
}"""


def saved(text: str, path: Path) -> Path:
    """A model with these weights; the checker would refuse it."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> g {text}')
    for info in [item for item in proto.graph.value_info if item.name in WEIGHTS]:
        proto.graph.value_info.remove(info)
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if f" {name}" in text
    )
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("declared")
    np.savez(path / "data.npz", x=DATA)
    return path


def sizes(path: Path) -> list[list[int | str]]:
    values = [*onnx.load(path).graph.input, *onnx.load(path).graph.output]
    shapes = (value.type.tensor_type.shape.dim for value in values)
    return [[size.dim_value or size.dim_param for size in shape] for shape in shapes]


def test_samples_behind_the_steps_are_told_apart_whatever_the_file_declares(folder: Path):
    data, found = str(folder / "data.npz"), []
    for batch in ("N", "1"):
        text = f"(float[{batch},3,4,W] x) => (float[{batch},L] y) {HEAD} {STEPS_FIRST}"
        path, run = saved(text, folder / f"{batch}.onnx"), folder / batch
        result = ptq_cli.quantize(
            path, run=run, data=data, eval_data=data, metric=["sqnr_db"], evaluate=True, threads=1
        )
        assert result.export.plan.layers[0].quantized
        assert len(sizes(run / "model.float.onnx")[1]) == 3
        assert ptq_cli.verify(run / "model_int8.onnx", run=run, threads=1).verdict == "pass"
        assert ptq_cli.analyze(run=run, threads=1).analysis.layers
        found.append({item.name: item for item in result.evaluation.report.metrics})
    assert set(found[0]) == set(found[1])
    for name in ("sqnr_db", "cosine"):
        several, single = found[0][name], found[1][name]
        assert several.quantized_value == pytest.approx(single.quantized_value, rel=1e-6)
        assert several.quantized_interval is not None
        assert single.quantized_interval is not None


LIES = {
    "rank_of_an_output": ("(float[N,3,4,W] x) => (float[7,2] y)", ""),
    "sizes_of_an_output": ("(float[N,3,4,W] x) => (float[N,4,9,9] y)", ""),
    "sizes_between": ("(float[N,3,4,W] x) => (float[N,4,H,W] y)", "float[7,4,6,6] c"),
    "one_name_for_sizes_that_are_not_equal": ("(float[q,3,q,q] x) => (float[q,q,q,q] y)", "float[q,q,q,q] c"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_file_declares_of_computed_values_is_not_believed(lie: str, folder: Path):
    interface, between = LIES[lie]
    text = f"""{interface} <float[4,3,3,3] w{", " * bool(between)}{between}> {{
        c = Conv(x, w)
        s = Shape(c)
        y = Reshape(c, s) }}"""
    path = saved(text, folder / f"{lie}.onnx")
    output = folder / f"{lie}.float.onnx"
    result = ptq_cli.prepare(path, output=output, data=str(folder / "data.npz"))
    assert result.difference == 0.0
    onnx.checker.check_model(output, full_check=True)
    real = (*DATA.shape, len(DATA), 4, 2, 10)
    told = [size for shape in sizes(output) for size in shape]
    assert all(
        size == number for size, number in zip(told, real, strict=True) if isinstance(size, int) and size
    )
    names = {
        (size, number) for size, number in zip(told, real, strict=True) if isinstance(size, str) and size
    }
    assert len({name for name, _ in names}) == len(names)


def test_an_output_without_a_type_has_the_inferred_one(tmp_path: Path):
    weight = numpy_helper.from_array(WEIGHTS["v"], "v")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "v"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [onnx.ValueInfoProto(name="y")],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert ptq_cli.prepare(tmp_path / "m.onnx", output=tmp_path / "float.onnx").difference == 0.0
    assert sizes(tmp_path / "float.onnx")[1] == ["N", 5]

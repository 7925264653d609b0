"""The matrix form of a layer's weight, and the layers that have none.

Rows times the weight are what ONNX Runtime computes.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.plan.sites import WeightSite
from ptq_cli.recover.layer_geometry import LayerGeometry, LayerRows, layer_geometry
from tests.each_case import each_case
from tests.unit.plan.graphs import build, run

IMAGES = "(float[n, 4, 6, 6] x) => (float[n, 4, m, k] y) <float[4, 2, 3, 3] w>"
ROWS = "(float[n, 4] x) => (float[n, 6] y) <float[4, 6] w>"


def geometry(text: str, **changes: Any) -> LayerGeometry | str:
    (node,) = build(text).graph
    shape = node.inputs[1].shape.numpy()
    settings = {"tensor": "w", "node": "y", "input_index": 1, "format": INT8_NARROW, "axis": None, **changes}
    return layer_geometry(node, WeightSite(**settings), shape)


@each_case(
    "text, shape, groups",
    [
        (f"{ROWS} {{ y = MatMul (x, w) }}", (4, 6), 1),
        (f"{ROWS.replace('[4, 6] w', '[6, 4] w')} {{ y = Gemm <transB=1> (x, w) }}", (6, 4), 1),
        (f"{IMAGES} {{ y = Conv <group=2> (x, w) }}", (4, 2, 3, 3), 2),
        (f"{IMAGES} {{ y = ConvTranspose <group=2> (x, w) }}", (4, 2, 3, 3), 2),
    ],
)
def test_rows_are_put_back_where_they_were(text: str, shape: tuple[int, ...], groups: int) -> None:
    found = geometry(text)
    assert isinstance(found, LayerGeometry) and found.groups == groups
    weight = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    rows = found.rows(weight)
    assert len(rows) == found.channels(shape)
    assert np.array_equal(found.in_place(rows, shape), weight)


@each_case(
    "text, changes, reason",
    [
        (f"{ROWS} {{ y = Gemm <alpha=2.0> (x, w) }}", {}, "with factors"),
        (f"{IMAGES} {{ y = ConvTranspose <group=2, output_shape=[8, 8]> (x, w) }}", {}, "output_shape"),
        (f"{ROWS} {{ y = MatMul (x, w) }}", {"axis": 0, "block_size": 3}, "do not divide its 4 inputs"),
        (f"{ROWS} {{ y = MatMul (x, w) }}", {"axis": 1, "block_size": 2}, "along the output channels"),
        (f"{IMAGES} {{ y = Conv <group=2> (x, w) }}", {"axis": 1, "block_size": 2}, "with groups"),
    ],
)
def test_forms_without_a_matrix_say_why(text: str, changes: dict[str, Any], reason: str) -> None:
    found = geometry(text, **changes)
    assert isinstance(found, str) and reason in found


def test_blocks_of_inputs_are_numbered_along_them() -> None:
    found = geometry(f"{ROWS} {{ y = MatMul (x, w) }}", axis=0, block_size=2)
    assert isinstance(found, LayerGeometry)
    assert (found.blocks, found.block.tolist()) == (2, [0, 0, 1, 1])


CONVOLUTIONS = {
    "padded": ("4, 7, 6", "6, 4, 3, 3", "pads=[1, 1, 1, 1]"),
    "strided": ("4, 7, 6", "6, 4, 3, 2", "strides=[2, 3]"),
    "dilated": ("4, 9, 8", "6, 4, 3, 3", "dilations=[2, 1], pads=[2, 0, 1, 1]"),
    "grouped": ("4, 7, 6", "6, 2, 3, 3", "group=2"),
    "depthwise": ("4, 7, 6", "8, 1, 3, 3", "group=4, pads=[1, 1, 1, 1], strides=[2, 2]"),
    "same upper": ("4, 7, 6", "6, 4, 2, 4", 'auto_pad="SAME_UPPER"'),
    "same lower": ("4, 7, 6", "6, 4, 2, 4", 'auto_pad="SAME_LOWER"'),
    "valid": ("4, 7, 6", "6, 4, 3, 3", 'auto_pad="VALID"'),
    "one axis": ("4, 9", "6, 4, 3", "pads=[2, 0], strides=[2]"),
    "three axes": ("2, 4, 5, 4", "3, 2, 2, 3, 2", "pads=[1, 0, 1, 0, 1, 0]"),
}
TRANSPOSED = {
    "plain": ("4, 5, 6", "4, 3, 3, 3", ""),
    "strided": ("4, 5, 6", "4, 3, 3, 2", "strides=[2, 3], pads=[1, 0, 1, 1], output_padding=[1, 0]"),
    "dilated": ("4, 5, 6", "4, 3, 3, 3", "dilations=[2, 1], strides=[1, 2]"),
    "grouped": ("4, 5, 6", "4, 3, 2, 2", "group=2, strides=[2, 2]"),
    "same upper": ("4, 5, 6", "4, 3, 4, 3", 'auto_pad="SAME_UPPER", strides=[2, 2]'),
}
PRODUCTS = {
    "matrices": ("6", "y = MatMul (x, w)", "6, 5"),
    "sequences": ("3, 6", "y = MatMul (x, w)", "6, 5"),
    "gemm": ("6", "y = Gemm (x, w)", "6, 5"),
    "transposed gemm": ("6", "y = Gemm <transB=1> (x, w)", "5, 6"),
}


def made(model: ir.Model, read: np.ndarray) -> np.ndarray:
    return run(model, {"x": read})[0]


def require_product(model: ir.Model, shape: tuple[int, ...]) -> None:
    node = next(iter(model.graph))
    weight = model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
    geometry = found(node, weight.shape)
    read = np.random.default_rng(0).integers(0, 200, (3, *shape)).astype(np.float32)
    rows = LayerRows(geometry, wanted=10**6, samples=3, outside=0)
    output = made(model, read)
    rows.add(1, read[2:], output[2:], first=2)
    rows.add(0, read[:2], output[:2], first=0)
    inputs, targets = next(rows.parts())
    matrix = geometry.rows(weight)
    size, each = matrix.shape[1], len(matrix) // geometry.groups
    for group in range(geometry.groups):
        own = slice(group * each, (group + 1) * each)
        product = inputs[:, group * size : (group + 1) * size] @ matrix[own].T
        np.testing.assert_allclose(product, targets[:, own], rtol=1e-4, atol=1e-2)
    assert targets.shape == (output.size // len(matrix), len(matrix))
    np.testing.assert_array_equal(geometry.in_place(matrix, weight.shape), weight)


def found(node: ir.Node, shape: tuple[int, ...], **changes: object) -> LayerGeometry:
    axis = (
        1 if node.op_type == "MatMul" or (node.op_type == "Gemm" and "transB" not in node.attributes) else 0
    )
    values = {"tensor": "w", "node": "y", "input_index": 1, "format": INT8_NARROW, "axis": axis, **changes}
    geometry = layer_geometry(node, WeightSite(**values), shape)  # type: ignore[arg-type]
    assert isinstance(geometry, LayerGeometry), geometry
    return geometry


@each_case("taken, weight, attributes", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolutions(taken: str, weight: str, attributes: str) -> None:
    output = ", ".join("abcde"[: taken.count(",") + 1])
    types = f"(float[n, {taken}] x) => (float[n, {output}] y) <float[{weight}] w>"
    text = f"{types} {{ y = Conv <{attributes}> (x, w) }}"
    require_product(build(text), tuple(map(int, taken.split(","))))


@each_case("taken, weight, attributes", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_transposed_convolutions(taken: str, weight: str, attributes: str) -> None:
    types = f"(float[n, {taken}] x) => (float[n, a, b, c] y) <float[{weight}] w>"
    text = f"{types} {{ y = ConvTranspose {f'<{attributes}>' if attributes else ''} (x, w) }}"
    require_product(build(text), tuple(map(int, taken.split(","))))


@each_case("taken, node, weight", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_of_matrices(taken: str, node: str, weight: str) -> None:
    output = f"{taken.rpartition(',')[0]}, 5".lstrip(", ")
    text = f"(float[n, {taken}] x) => (float[n, {output}] y) <float[{weight}] w> {{ {node} }}"
    require_product(build(text), tuple(map(int, taken.split(","))))


def test_a_vector_is_one_row() -> None:
    text = "(float[6] x) => (float[5] y) <float[6, 5] w> { y = MatMul (x, w) }"
    rows = LayerRows(found(next(iter(build(text).graph)), (6, 5)), wanted=9, samples=6, outside=0)
    rows.add(0, np.arange(6, dtype=np.uint8), np.zeros(5, np.float32), first=0)
    assert [(read.tolist(), made.shape) for read, made in rows.parts()] == [([[0, 1, 2, 3, 4, 5]], (1, 5))]


def test_the_zero_point_stands_in_the_padding() -> None:
    types = "(float[n, 1, 2, 2] x) => (float[n, 1, 2, 2] y) <float[1, 1, 3, 3] w>"
    text = f"{types} {{ y = Conv <pads=[1, 1, 1, 1]> (x, w) }}"
    geometry = found(next(iter(build(text).graph)), (1, 1, 3, 3))
    rows = LayerRows(geometry, wanted=9, samples=1, outside=128)
    rows.add(0, np.full((1, 1, 2, 2), 7, np.uint8), np.zeros((1, 1, 2, 2), np.float32), first=0)
    inputs, _ = next(rows.parts())
    assert inputs[0].tolist() == [128, 128, 128, 128, 7, 7, 128, 7, 7]


def test_blocks_of_channels_are_apart_at_each_position() -> None:
    text = "(float[n, 4, 3, 3] x) => (float[n, 2, 2, 2] y) <float[2, 4, 2, 2] w> { y = Conv (x, w) }"
    geometry = found(next(iter(build(text).graph)), (2, 4, 2, 2), axis=1, block_size=2)
    assert (geometry.blocks, geometry.block.tolist()) == (8, [0, 1, 2, 3] * 2 + [4, 5, 6, 7] * 2)


def test_as_many_rows_as_wanted_are_taken_from_all_samples() -> None:
    text = "(float[n, 1, 8, 8] x) => (float[n, 1, 8, 8] y) <float[1, 1, 1, 1] w> { y = Conv (x, w) }"
    rows = LayerRows(found(next(iter(build(text).graph)), (1, 1, 1, 1)), wanted=10, samples=5, outside=0)
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8).repeat(5, axis=0)
    rows.add(0, x, x, first=0)
    inputs, targets = next(rows.parts())
    assert inputs.tolist() == targets.tolist()
    assert len(inputs) == 10
    assert len(np.unique(inputs)) > 5, "each sample gives other positions"


REFUSED = {
    "a scaled Gemm": (
        "(float[n, 6] x) => (float[n, 5] y) <float[6, 5] w> { y = Gemm <alpha=2.0> (x, w) }",
        "factors",
    ),
    "matrices in a batch": (
        "(float[n, 2, 6] x) => (float[n, n, 5] y) <float[2, 6, 5] w> { y = MatMul (x, w) }",
        "its weight is not a matrix: its shape is [2, 6, 5]",
    ),
    "a vector": (
        "(float[n, 6] x) => (float[n] y) <float[6] w> { y = MatMul (x, w) }",
        "its weight is not a matrix: its shape is [6]",
    ),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_matrix_form_says_why(text: str, reason: str) -> None:
    model = build(text)
    site = WeightSite(tensor="w", node="y", input_index=1, format=INT8_NARROW, axis=0)
    shape = model.graph.initializers["w"].const_value.shape.numpy()  # type: ignore[union-attr]
    assert reason in str(layer_geometry(next(iter(model.graph)), site, shape))

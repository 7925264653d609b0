"""The matrix form of a layer's weight, and the layers that have none."""

from typing import Any

import numpy as np

from ptq_cli.core.formats import INT8_NARROW
from ptq_cli.plan.sites import WeightSite
from ptq_cli.recover.layer_geometry import LayerGeometry, layer_geometry
from tests.each_case import each_case
from tests.unit.plan.graphs import build

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

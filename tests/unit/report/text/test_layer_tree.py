"""A tree shows what is alike once, and stays readable however many layers there are."""

from dataclasses import replace

from ptq_cli.report.text.layer_tree import MOST_TREE_ROWS, TreeLayer, layer_tree
from tests.each_case import each_case


def layer(name, op="Conv", parameters=4, reason="", *, integer=True):
    return TreeLayer(
        name=name,
        op=op,
        output="[?, 8]",
        parameters=parameters,
        multiply_accumulates=16,
        placed="uint8 x int8" if integer else "float",
        integer=integer,
        reason=reason,
    )


def texts(layers: list[TreeLayer], depth: int | None = None) -> list[str]:
    rows, _ = layer_tree(layers, depth)
    return [f"{'  ' * row.depth}{row.label} {row.layers}" for row in rows]


def block(number: int, parameters: int = 4) -> list[TreeLayer]:
    return [
        layer(f"body.{number}.taking", parameters=parameters),
        layer(f"body.{number}.giving"),
        layer(f"body.{number}/Add", "Add", 0),
    ]


def test_layers_stand_below_their_modules_with_totals():
    rows, cut = layer_tree([layer("stem.conv"), layer("stem.act", "Relu", 0, integer=False), layer("fc")])
    assert [(row.depth, row.label, row.layers, row.integers) for row in rows] == [
        (0, "stem", 2, 1),
        (1, "conv", 1, 1),
        (1, "act", 1, 0),
        (0, "fc", 1, 1),
    ]
    assert (rows[0].parameters, rows[0].multiply_accumulates, cut) == (4, 32, None)


def test_blocks_that_are_alike_are_shown_once():
    assert texts([*block(0), *block(1), *block(2)]) == [
        "body 9",
        "  0 … 2 9",
        "    taking 1",
        "    giving 1",
        "    Add 1",
    ]


def test_a_block_of_another_size_stands_alone():
    found = texts([*block(0), *block(1, parameters=5), *block(2), *block(3)])
    assert [text for text in found if text.startswith("  ") and text[2] != " "] == [
        "  0 3",
        "  1 3",
        "  2 … 3 6",
    ]


def test_a_block_that_stays_float_is_not_alike():
    other = [layer("body.1.taking", integer=False), layer("body.1.giving"), layer("body.1/Add", "Add", 0)]
    assert "  0 … 1 6" not in texts([*block(0), *other])


def test_reasons_that_differ_by_a_name_are_alike():
    layers = [layer(f"m.{i}", reason=f"reads 'x{i}', part of m.{i}", integer=False) for i in range(5)]
    assert texts(layers) == ["m 5", "  0 … 4 5"]


def test_layers_without_modules_that_repeat_are_shown_once():
    layers = [
        layer(f"{op}_{3 * i + j}", op) for i in range(4) for j, op in enumerate(("Conv", "Relu", "Add"))
    ]
    assert texts(layers) == ["4 times: Conv_0 … Add_11 12", "  Conv_0 1", "  Relu_1 1", "  Add_2 1"]


def test_a_depth_cuts_and_keeps_the_totals():
    rows, cut = layer_tree([*block(0), *block(1, parameters=5)], depth=1)
    assert ([row.label for row in rows], rows[0].layers, rows[0].parameters, cut) == (["body"], 6, 17, 1)


def test_a_thousand_layers_that_are_alike_are_few_lines():
    layers = [item for i in range(334) for item in block(i)]
    assert len(layers) > 1000
    assert len(texts(layers)) == 5


def test_a_thousand_layers_of_many_sizes_are_cut_where_they_stay_readable():
    layers = [layer(f"a.{i % 5}.b.{i % 25}.c.{i}", parameters=i) for i in range(1000)]
    rows, cut = layer_tree(layers)
    assert len(rows) <= MOST_TREE_ROWS
    assert cut is not None
    assert rows[0].layers == 1000
    assert rows[0].parameters == sum(range(1000))


@each_case("name", ["", ".", "//", "a..b", "same"])
def test_odd_names_lose_no_layer(name):
    rows, _ = layer_tree([layer(name), layer(name), layer("same.inner")])
    assert sum(row.layers for row in rows if row.depth == 0) == 3


def test_the_totals_of_all_modules_are_those_of_the_model():
    layers = [item for i in range(7) for item in block(i, parameters=i % 3)]
    rows, _ = layer_tree(layers, depth=1)
    assert sum(row.parameters for row in rows) == sum(item.parameters for item in layers)


def test_what_layers_share_counts_once_in_their_modules_total():
    shared = {"table": 10}
    layers = [replace(layer(name), parameters=10, constants=shared) for name in ("net.in", "net.out")]
    layers.append(replace(layer("net.own"), parameters=3))
    assert layer_tree(layers)[0][0].parameters == 13

"""The staircase in characters."""

from typing import Any

from ptq_cli.pipeline.views.staircase import staircase_of
from ptq_cli.recipe.quantizer_families import FAMILIES
from ptq_cli.shown.drawings import MARGIN, draw_staircase
from tests.each_case import each_case

CORNERS = set("┌┘┐└│─")


def drawn(name: str, width: int = 80, **settings: Any) -> list[str]:
    return draw_staircase(staircase_of(FAMILIES[name], settings), width)


def rows(lines: list[str], title: str) -> list[str]:
    """The rows of one drawing, without the margin."""
    start = next(index for index, line in enumerate(lines) if line.startswith(title))
    inside = lines[start + 1 :]
    end = next(index for index, line in enumerate(inside) if line[MARGIN - 1 : MARGIN] == "└")
    return [line[MARGIN:] for line in inside[:end] if line[MARGIN - 1 : MARGIN] in ("│", "┤")]


@each_case("width", [80, 160])
@each_case("name", FAMILIES)
def test_it_is_as_wide_as_the_terminal(name: str, width: int) -> None:
    lines = drawn(name, width)
    assert max(map(len, lines)) == width - 1
    assert all(character.isprintable() for line in lines for character in line)


def test_every_level_has_a_row_of_its_own() -> None:
    found = rows(drawn("scaled", bits=4), "result")
    assert len(found) == 15
    assert all("──" in row for row in found)


def test_it_is_one_line_that_rises_from_left_to_right() -> None:
    found = rows(drawn("scaled", bits=3), "result")
    for column in range(max(map(len, found))):
        line = [
            row
            for row, text in enumerate(found)
            if text[column : column + 1] in CORNERS and text[column : column + 1]
        ]
        assert line == list(range(line[0], line[-1] + 1)), f"column {column} has a gap"
    starts = [
        min(row.index(character) for character in "┌─" if character in row) for row in found if "─" in row
    ]
    assert starts == sorted(starts, reverse=True)


def test_the_gradient_falls_to_0_where_x_is_clipped() -> None:
    high, *_, low = rows(drawn("scaled"), "gradient")
    assert high.startswith(" " * 11 + "┌──") and high.rstrip().endswith("──┐")
    assert low.startswith("─" * 11 + "┘") and low.rstrip().endswith("└" + "─" * 10)


def test_dots_are_where_the_value_itself_is() -> None:
    above = rows(drawn("fixed_point", bits=3, integer=1, alpha=0.5), "result")
    assert above[0].index("·") < above[0].index("┌"), "x is above what is half of it"


def test_one_level_is_a_line_at_the_bottom() -> None:
    lines = drawn("fixed_point", alpha=0.0)
    labels = [
        line[:MARGIN].strip(" ┤") for line in lines[: lines.index(next(x for x in lines if "gradient" in x))]
    ]
    assert labels.count("0") == 1


def test_a_terminal_of_a_few_columns_breaks_nothing() -> None:
    assert drawn("centers", 5, centers=256)

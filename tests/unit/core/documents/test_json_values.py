"""Values survive JSON, and what does not fit is refused with its place."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from ptq_cli.core.documents import AtLeast, Matches, decode, encode, strict_json
from ptq_cli.core.errors import ReportError
from tests.each_case import each_case


def test_a_byte_order_mark_is_no_part_of_the_json():
    assert strict_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@dataclass(frozen=True)
class Leaf:
    DERIVED: ClassVar[tuple[str, ...]] = ("double",)

    size: Annotated[int, AtLeast(1)]
    code: Annotated[str, Matches("[a-z]+", "a word")] = "a"
    flag: bool = True

    @property
    def double(self) -> int:
        return 2 * self.size


@dataclass(frozen=True, kw_only=True)
class Tree:
    kind: Literal["oak", "elm"]
    height: float
    age: float | None
    leaves: tuple[Leaf, ...]
    notes: dict[str, str]


TREE = Tree(
    kind="oak", height=1.5, age=None, leaves=(Leaf(1), Leaf(2, "b", flag=False)), notes={"b": "2", "a": "1"}
)


def through_json(kind: Any, value: Any) -> Any:
    return decode(kind, json.loads(json.dumps(encode(value), allow_nan=False)), "")


def test_a_value_survives_the_round_trip() -> None:
    assert through_json(Tree, TREE) == TREE


def test_derived_keys_are_written_first_and_dictionaries_sorted() -> None:
    assert list(encode(Leaf(1))) == ["double", "size", "code", "flag"]
    assert list(encode(TREE)["notes"]) == ["a", "b"]


@each_case("value", [math.inf, -math.inf, 0.1, 1e300, 5e-324, -0.0])
def test_every_float_survives(value: float) -> None:
    assert through_json(float, value) == value


def test_nan_survives() -> None:
    assert math.isnan(through_json(float, math.nan))


def broken(**changes: Any) -> dict[str, Any]:
    return {**encode(TREE), **changes}


LEAF = encode(Leaf(1))


@each_case(
    "value, message",
    [
        ([], "the document is a list, expected an object"),
        (broken(kind="ash"), "'kind' is 'ash', expected 'oak' or 'elm'"),
        (broken(kind=["oak"]), "'kind' is a list, expected 'oak' or 'elm'"),
        (broken(height="tall"), "'height' is 'tall', expected a number"),
        (broken(height=True), "'height' is true, expected a number"),
        (broken(height=None), "'height' is null, expected a number"),
        (broken(height=10**400), f"'height' is 1{'0' * 79}…, expected a number within the range of float64"),
        (broken(age="old"), "'age' is 'old', expected a number"),
        (broken(leaves={}), "'leaves' is an object, expected a list"),
        (broken(leaves=[LEAF, 3]), "'leaves[1]' is 3, expected an object"),
        (broken(leaves=[{**LEAF, "size": 0, "double": 0}]), "'leaves[0].size' is 0, expected at least 1"),
        (broken(leaves=[{**LEAF, "size": 1.5}]), "'leaves[0].size' is 1.5, expected a whole number"),
        (broken(leaves=[{**LEAF, "size": True}]), "'leaves[0].size' is true, expected a whole number"),
        (
            broken(leaves=[{**LEAF, "size": 2**63}]),
            "'leaves[0].size' is 9223372036854775808, expected a whole number of 64 bits",
        ),
        (broken(leaves=[{**LEAF, "code": "B2"}]), "'leaves[0].code' is 'B2', expected a word"),
        (broken(leaves=[{**LEAF, "flag": 1}]), "'leaves[0].flag' is 1, expected true or false"),
        (
            broken(leaves=[{**LEAF, "double": 5}]),
            "'leaves[0].double' is 5, but the rest of the report says 2",
        ),
        (broken(notes={"a": 1}), "'notes.a' is 1, expected a string"),
        (broken(notes={"a": "\ud800"}), "'notes.a' is '\\ud800', expected text that UTF-8 can encode"),
        (broken(color="red"), "'color' is not a key of this format version"),
        ({"kind": "oak"}, "'height' is missing"),
        (broken(leaves=[{}]), "'leaves[0].double' is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        decode(Tree, value, "")
    assert caught.value.message == message
    assert caught.value.hint == "run ptq evaluate again"


def test_true_is_not_the_derived_number_one() -> None:
    with pytest.raises(ReportError, match="but the rest of the report says 2"):
        decode(Leaf, {**LEAF, "double": True}, "")

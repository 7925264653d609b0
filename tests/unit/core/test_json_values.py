"""Values survive JSON, and what does not fit is refused with its place."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from ptq_cli.core.errors import ReportError
from ptq_cli.core.json_values import AtLeast, Matches, decode, encode


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


def test_derived_keys_are_written_last_and_dictionaries_sorted() -> None:
    assert list(encode(Leaf(1))) == ["size", "code", "flag", "double"]
    assert list(encode(TREE)["notes"]) == ["a", "b"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, 1e300, 5e-324, -0.0])
def test_every_float_survives(value: float) -> None:
    assert through_json(float, value) == value


def test_nan_survives() -> None:
    assert math.isnan(through_json(float, math.nan))


def test_a_whole_number_is_a_number() -> None:
    assert decode(float, 3, "x") == 3.0


def broken(**changes: Any) -> dict[str, Any]:
    return {**encode(TREE), **changes}


LEAF = encode(Leaf(1))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the whole of it is a list, an object is wanted"),
        (broken(kind="ash"), "'kind' is 'ash', 'oak' or 'elm' is wanted"),
        (broken(kind=["oak"]), "'kind' is a list, 'oak' or 'elm' is wanted"),
        (broken(height="tall"), "'height' is 'tall', a number is wanted"),
        (broken(height=True), "'height' is true, a number is wanted"),
        (broken(height=None), "'height' is null, a number is wanted"),
        (broken(height=10**400), f"'height' is 1{'0' * 79}…, a number that float64 holds is wanted"),
        (broken(age="old"), "'age' is 'old', a number is wanted"),
        (broken(leaves={}), "'leaves' is an object, a list is wanted"),
        (broken(leaves=[LEAF, 3]), "'leaves[1]' is 3, an object is wanted"),
        (broken(leaves=[{**LEAF, "size": 0, "double": 0}]), "'leaves[0].size' is 0, at least 1 is wanted"),
        (broken(leaves=[{**LEAF, "size": 1.5}]), "'leaves[0].size' is 1.5, a whole number is wanted"),
        (broken(leaves=[{**LEAF, "size": True}]), "'leaves[0].size' is true, a whole number is wanted"),
        (
            broken(leaves=[{**LEAF, "size": 2**63}]),
            "'leaves[0].size' is 9223372036854775808, a whole number of 64 bits is wanted",
        ),
        (broken(leaves=[{**LEAF, "code": "B2"}]), "'leaves[0].code' is 'B2', a word is wanted"),
        (broken(leaves=[{**LEAF, "flag": 1}]), "'leaves[0].flag' is 1, true or false is wanted"),
        (
            broken(leaves=[{**LEAF, "double": 5}]),
            "'leaves[0].double' is 5, but the rest of the report says 2",
        ),
        (broken(notes={"a": 1}), "'notes.a' is 1, a text is wanted"),
        (broken(notes={"a": "\ud800"}), "'notes.a' is '\\ud800', text that UTF-8 can write is wanted"),
        (broken(colour="red"), "'colour' is no key of this format version"),
        ({"kind": "oak"}, "'height' is missing"),
        (broken(leaves=[{}]), "'leaves[0].size' is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        decode(Tree, value, "")
    assert caught.value.message == message
    assert caught.value.hint == "write the report again with ptq evaluate"


def test_true_is_not_the_derived_number_one() -> None:
    with pytest.raises(ReportError, match="but the rest of the report says 2"):
        decode(Leaf, {**LEAF, "double": True}, "")

"""What a quantizer does to a line of values: the staircase, and the gradient that stands for its slope."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ptq_cli.core.documents import HIDDEN
from ptq_cli.quantizers.curve import Curve, Floats
from ptq_cli.recipe.quantizer_families import QuantizerFamily, Value, drawing_settings

POINTS = 401
"""Inputs that the document has."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Staircase:
    """A quantizer with its settings, drawn."""

    DERIVED: ClassVar[tuple[str, ...]] = ("name", "formula", "x", "y", "gradient")

    family: Annotated[QuantizerFamily, HIDDEN]
    settings: Annotated[Mapping[str, Any], "Its parameters."]
    curve: Annotated[Curve, HIDDEN]
    levels: Annotated[Floats, "The values that its output can have, ascending."]
    plot: Annotated[Path | None, "The file of the picture; null if none was asked for."] = None

    @property
    def name(self) -> str:
        """Name of the quantizer."""
        return self.family.name

    @property
    def formula(self) -> str:
        """What it computes."""
        return self.family.formula

    @property
    def x(self) -> Floats:
        """Inputs."""
        return self.curve.line(POINTS)

    @property
    def y(self) -> Floats:
        """The output for each input."""
        return self.curve.at(self.x)[0]

    @property
    def gradient(self) -> Floats:
        """The gradient for each input."""
        return self.curve.at(self.x)[1]


def staircase_of(family: QuantizerFamily, given: Mapping[str, Value]) -> Staircase:
    """Return the staircase of a quantizer; ``family.drawn`` has the settings."""
    settings = drawing_settings(family, given)
    curve: Curve = import_module(f"ptq_cli.quantizers.{family.module}").curve(**settings)
    return Staircase(family=family, settings=settings, curve=curve, levels=curve.levels())

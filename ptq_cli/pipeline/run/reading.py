"""How data is read: what all sources of a recipe have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.dataset.renaming import rename_arrays
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.core.errors import EmptyDataError
from ptq_cli.recipe.schema import Recipe
from ptq_cli.recipe.sections.calibration_sections import CalibrationSettings
from ptq_cli.recipe.sections.evaluation_sections import EvaluationSettings
from ptq_cli.recipe.sections.input_sections import ImageSettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the data of a recipe is read.

    Attributes:
        image: how images become arrays.
        text: how texts become tokens.
        rename: the model's input by the name of an array.
        fixed: inputs of the model that are constants; arrays of theirs are not read.
        required: the arrays in ``rename`` that the data must have.
    """

    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    rename: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()

    def open(self, source: str, samples: int | None = None) -> Dataset:
        """Open data, with its arrays under the names of the model's inputs.

        Raises:
            PtqError: it cannot be opened; see ``open_dataset`` and ``rename_arrays``.
        """
        dataset = open_dataset(source, self.image, self.text, samples=samples)
        return rename_arrays(dataset, self.rename, self.fixed, self.required)


def reading_of(recipe: Recipe) -> Reading:
    """Return how the data of a recipe is read.

    Example:
        >>> reading_of(Recipe()).image.layout
        'NCHW'
    """
    fixed = frozenset(recipe.model.inputs)
    return Reading(image=recipe.image, text=recipe.text, rename=recipe.data.rename, fixed=fixed)


def open_data(
    settings: CalibrationSettings | EvaluationSettings, reading: Reading, section: str, flag: str
) -> Dataset:
    """Open the data that a section of the recipe names.

    Raises:
        EmptyDataError: the section names none.
        PtqError: it cannot be opened; see ``Reading.open``.
    """
    if settings.data is None:
        raise no_data(section, flag)
    return reading.open(settings.data, settings.samples)


def no_data(section: str, flag: str) -> EmptyDataError:
    """Return the error that says that a section of the recipe names no data.

    Example:
        >>> no_data("calibration", "--data").message
        'no calibration data was given'
    """
    return EmptyDataError(
        f"no {section} data was given",
        hint=f"{flag} data.npz, or data = 'data.npz' under [{section}] in ptq.toml",
    )

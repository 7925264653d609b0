"""Inputs that a model is timed on: samples of the run's data, or made-up ones if there are none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.batch import Batch as Samples
from ptq_cli.calibdata.dataset.rebatch import joined, part_of
from ptq_cli.core.errors import PtqError, RecipeValueError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.pipeline.preparing.made_up_inputs import MADE_UP, made_up_batches, own_batch_size
from ptq_cli.pipeline.run.reading import Reading
from ptq_cli.pipeline.run.resolve import Resolved

BATCHES = 16
"""Different ones, so that no cache holds them all; more would take memory for nothing."""


@dataclass(frozen=True)
class ServedInputs:
    """What a model is run on.

    Attributes:
        data: whose samples they are, or that they are made up.
        batches: by input name, all of one size.
        faults: why data of the recipe were not used.
    """

    data: str
    batches: Sequence[Mapping[str, Array]]
    faults: tuple[str, ...] = ()


def served_batch(specs: Sequence[TensorSpec], asked: int) -> int:
    """Return how many samples a run of a model takes where it is served.

    Args:
        specs: what its inputs look like.
        asked: samples per run of the recipe; 1 is the default, which a model with another size overrides.

    Raises:
        RecipeValueError: the model takes batches of another size.

    Example:
        >>> import numpy as np
        >>> served_batch([TensorSpec("x", np.dtype("f4"), (4, 3))], 1)
        4
    """
    own = own_batch_size(specs)
    if own is not None and asked not in (1, own):
        raise RecipeValueError(
            f"--serve-batch is {asked}, but the model takes batches of {own}",
            hint="leave --serve-batch out, or export the model with a dynamic batch axis",
        )
    return own or asked


def inputs_of_recipe(
    resolved: Resolved, graph: ir.Model, specs: Sequence[TensorSpec], batch: int
) -> ServedInputs:
    """Return samples of the recipe's calibration or evaluation data, or made-up ones.

    Args:
        resolved: the recipe.
        graph: the model, for which inputs are made up.
        specs: what its inputs look like.
        batch: samples per run.
    """
    recipe = resolved.recipe
    faults: list[str] = []
    for data in dict.fromkeys(filter(None, (recipe.calibration.data, recipe.evaluation.data))):
        try:
            return ServedInputs(
                data, batches_of(data, resolved.reading, specs, batch, repeat=True), tuple(faults)
            )
        except PtqError as error:
            faults.append(error.message)
    shapes = {name: (batch, *shape[1:]) for name, shape in recipe.model.input_shape.items() if shape}
    return ServedInputs(MADE_UP, made_up_batches(graph, batch, shapes=shapes), tuple(faults))


def batches_of(
    data: str, reading: Reading, specs: Sequence[TensorSpec], batch: int, *, repeat: bool = False
) -> list[Mapping[str, Array]]:
    """Return whole batches of samples; with ``repeat``, fewer samples than a batch has are repeated.

    Raises:
        RecipeValueError: there are fewer samples than a batch has.
        PtqError: the data cannot be used.
    """
    dataset = reading.open(data, batch * BATCHES)
    found = list(islice(bind_inputs(dataset, specs).batches(batch), BATCHES))
    whole: list[Mapping[str, Array]] = [item.inputs for item in found if item.size == batch]
    if not whole and repeat and found:
        return [_repeated(found[0], batch)]
    if not whole:
        samples = sum(item.size for item in found)
        raise RecipeValueError(
            f"--batch is {batch}, and '{dataset.source}' has {samples} samples", hint=f"--batch {samples}"
        )
    return whole


def _repeated(few: Samples, batch: int) -> Mapping[str, Array]:
    """Return a batch of samples that are used again and again."""
    times = -(-batch // few.size)
    axes = {name: few.axes.get(name, 0) for name in few.inputs}
    return {
        name: part_of(joined([array] * times, axes[name]), axes[name], 0, batch)
        for name, array in few.inputs.items()
    }

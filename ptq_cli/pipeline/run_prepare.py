"""``prepare``: the float graph that everything is measured on, in a file of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import onnx_ir as ir

from ptq_cli.calibdata.bind import bind_inputs, match_names, sole_notes
from ptq_cli.calibdata.dataset.batches import Batch as Samples
from ptq_cli.calibdata.dataset.batches import joined, part_of
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import PtqError, RecipeValueError, UntrustedCodeError
from ptq_cli.core.files import write_together
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.pipeline.setup.carried import fitting_data, with_states
from ptq_cli.pipeline.setup.example_inputs import MADE_UP, made_up_batches, own_batch_size
from ptq_cli.pipeline.setup.float_model import axes_told, float_model_of, open_source, reading
from ptq_cli.pipeline.setup.output_checks import input_files, require_output
from ptq_cli.pipeline.setup.resolve import Request, Resolved, resolve

RANDOM_INPUTS = "random inputs"


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """What ``ptq export --float`` did."""

    file: Annotated[SourceFile, "The source."]
    output: Annotated[Path, "The file."]
    bytes: Annotated[int, "Its size, with that of the file of its constants where it has one."]
    inputs: Annotated[tuple[TensorSpec, ...], "Specs of its inputs."]
    opset_before: Annotated[int, "Version of the operators before; of PyTorch, of what was exported."]
    opset: Annotated[int, "Version of the operators now."]
    nodes_before: Annotated[int, "How many nodes there were."]
    nodes: Annotated[int, "How many there are."]
    simplified: Annotated[
        int, "How many nodes fewer there are after constant folding, without those that compute nothing."
    ]
    applied: Annotated[Mapping[str, int], "How often each pass was applied, by its name."]
    notes: Annotated[tuple[str, ...], "What a user should know."]
    difference: Annotated[
        float | None,
        "Largest difference to the source, relative to the largest magnitude of its output; None where "
        "the source does not run on the inputs.",
    ]
    compared_with: Annotated[str, "Whose outputs those are, in the genitive."]
    compared_on: Annotated[str, "The data, or random inputs."]


def run_prepare(request: Request, output: Path) -> PrepareResult:
    """Export and prepare a model, compare it with its source, and write it."""
    result, model = make_preparation(resolve(request), output)
    write_together(model.files(output))
    return result


def make_preparation(resolved: Resolved, output: Path) -> tuple[PrepareResult, StoredModel]:
    """Export and prepare a model, and compare it with its source; nothing is written."""
    recipe = resolved.recipe
    require_output(output, input_files(recipe))
    source = open_source(recipe.model)
    settings = recipe.calibration
    dataset: Dataset | None = None
    notes: tuple[str, ...] = ()
    if settings.data is not None:
        dataset = resolved.strict_reading().open(settings.data, settings.samples)
        source = reading(source, dataset, recipe.model)
        axes = {**axes_told(source, recipe.data.batch_axis), **recipe.data.batch_axis}
        dataset = fitting_data(dataset, recipe.data, source, axes)
        notes = tuple(sole_notes(dataset, match_names(dataset, source.input_names)))
    model, told = float_model_of(resolved, source, dataset, always_compare=True, output=output)
    prepared = model.prepared
    result = PrepareResult(
        file=model.file,
        output=output,
        bytes=model.stored.size,
        inputs=model.inputs,
        opset_before=prepared.opset_before,
        opset=prepared.opset,
        nodes_before=prepared.nodes_before,
        nodes=prepared.nodes,
        simplified=prepared.simplified,
        applied=prepared.applied,
        notes=(*told, *model.notes, *notes),
        difference=model.parity,
        compared_with=model.compared_with,
        compared_on=dataset.source if dataset is not None else RANDOM_INPUTS,
    )
    return result, model.stored


# Inputs that a model is timed on: samples of the run's data, or made-up ones if there are none.


BATCHES = 16
"""Different ones, so that no cache holds them all; more would take memory for nothing."""


@dataclass(frozen=True)
class ServedInputs:
    """What a model is run on.

    Attributes:
        data: whose samples they are, or that they are made up.
        faults: why data of the recipe were not used.
    """

    data: str
    batches: Sequence[Mapping[str, Array]]
    faults: tuple[str, ...] = ()


def served_batch(specs: Sequence[TensorSpec], asked: int) -> int:
    """Return how many samples a run of a model takes where it is served.

    Example:
        >>> import numpy as np
        >>> served_batch([TensorSpec("x", np.dtype("f4"), (4, 3))], 1)
        4
    """
    own = own_batch_size(specs)
    if own is not None and asked not in (1, own):
        raise RecipeValueError(
            f"'export.serve_batch' is {asked}, but the model takes batches of {own}",
            hint="leave 'export.serve_batch' out, or export the model with a dynamic batch axis",
        )
    return own or asked


def inputs_of_recipe(
    resolved: Resolved, graph: ir.Model, specs: Sequence[TensorSpec], batch: int
) -> ServedInputs:
    """Return samples of the recipe's calibration or evaluation data, or made-up ones."""
    recipe = resolved.recipe
    faults: list[str] = []
    for data in dict.fromkeys(filter(None, (recipe.calibration.data, recipe.evaluation.data))):
        try:
            return ServedInputs(
                data, batches_of(data, resolved, graph, specs, batch, repeat=True), tuple(faults)
            )
        except UntrustedCodeError:
            raise
        except PtqError as error:
            faults.append(error.message)
    shapes = {name: (batch, *shape[1:]) for name, shape in recipe.model.input_shape.items() if shape}
    return ServedInputs(MADE_UP, made_up_batches(graph, batch, shapes=shapes), tuple(faults))


def batches_of(
    data: str,
    resolved: Resolved,
    graph: ir.Model,
    specs: Sequence[TensorSpec],
    batch: int,
    *,
    repeat: bool = False,
) -> list[Mapping[str, Array]]:
    """Return whole batches of samples; with ``repeat``, fewer samples than a batch has are repeated."""
    reading = resolved.reading if repeat else resolved.strict_reading()
    dataset = with_states(reading.open(data, batch * BATCHES), resolved.recipe.data, graph)
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
    times = -(-batch // few.size)
    axes = {name: few.axes.get(name, 0) for name in few.inputs}
    return {
        name: part_of(joined([array] * times, axes[name]), axes[name], 0, batch)
        for name, array in few.inputs.items()
    }

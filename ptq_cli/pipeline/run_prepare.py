"""``prepare``: the float graph that everything is measured on, in a file of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ptq_cli.calibdata.bind import match_names, sole_notes
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.files import write_together
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.setup.float_model import axes_told, float_model_of, open_source, reading
from ptq_cli.setup.output_checks import input_files, require_output
from ptq_cli.setup.resolve import Request, Resolved, resolve
from ptq_cli.setup.served_inputs import fitting_data

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

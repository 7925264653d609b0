"""``prepare``: the float graph that everything is measured on, in a file of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.calibdata.input_names import match_names, sole_notes
from ptq_cli.core.files import write_together
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.inputs.batch_axes import axis_notes
from ptq_cli.models.loading.source import SourceFile
from ptq_cli.pipeline.preparing.float_model import axes_told, make_float_model, open_source
from ptq_cli.pipeline.run.output_checks import input_files, require_output
from ptq_cli.pipeline.run.resolve import Request, Resolved, resolve

RANDOM_INPUTS = "random inputs"


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """The result of ``prepare``, and what was done for it.

    Attributes:
        file: the source.
        output: the file.
        bytes: its size, with that of the file of its constants where it has one.
        inputs: specs of its inputs.
        opset_before, opset: of the graph before and after; of PyTorch, before is what was exported.
        nodes_before, nodes: how many nodes it had, and has.
        simplified: how many nodes fewer there are after constant folding, without those that compute nothing.
        applied: how often each pass was applied, by its name.
        notes: what a user should know.
        difference: largest difference to the source, relative to the largest magnitude of its output; None
            where the source does not run on the inputs.
        compared_with: whose outputs those are, in the genitive.
        compared_on: the data, or ``random inputs``.
    """

    file: SourceFile
    output: Path
    bytes: int
    inputs: tuple[TensorSpec, ...]
    opset_before: int
    opset: int
    nodes_before: int
    nodes: int
    simplified: int
    applied: Mapping[str, int]
    notes: tuple[str, ...]
    difference: float | None
    compared_with: str
    compared_on: str


@dataclass(frozen=True)
class MadePreparation:
    """A prepared model that is not written yet.

    Attributes:
        result: what was done.
        model: as its files will hold it.
    """

    result: PrepareResult
    model: StoredModel


def run_prepare(request: Request, output: Path) -> PrepareResult:
    """Export and prepare a model, compare it with its source, and write it.

    Args:
        request: the model; data, where named, are what it is compared on.
        output: where to.

    Raises:
        OutputFileError: the file cannot be written; that is told before any work.
        UsageError: it would overwrite what it is made from.
        PtqError: the recipe, the model or the data cannot be used, or the graph computes something else.
    """
    made = make_preparation(resolve(request), output)
    write_together(made.model.files(output))
    return made.result


def make_preparation(resolved: Resolved, output: Path) -> MadePreparation:
    """Export and prepare a model, and compare it with its source; nothing is written.

    Args:
        resolved: the model; data, where named, are what it is compared on.
        output: where to.

    Raises:
        PtqError: as ``run_prepare`` does.
    """
    recipe = resolved.recipe
    require_output(output, input_files(recipe))
    source = open_source(recipe.model)
    settings = recipe.calibration
    dataset: Dataset | None = None
    notes: tuple[str, ...] = ()
    if settings.data is not None:
        dataset = resolved.strict_reading().open(settings.data, settings.samples)
        notes = tuple(sole_notes(dataset, match_names(dataset, source.input_names)))
    told = axes_told(source, recipe.data.batch_axis)
    model = make_float_model(
        source,
        dataset,
        threads=resolved.machine.threads,
        shapes=recipe.model.input_shape,
        axes={**told, **recipe.data.batch_axis},
        allow_nan=settings.allow_nonfinite,
        always_compare=True,
        output=output,
    )
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
        notes=(*axis_notes(told), *model.notes, *notes),
        difference=model.parity,
        compared_with=model.compared_with,
        compared_on=dataset.source if dataset is not None else RANDOM_INPUTS,
    )
    return MadePreparation(result, model.stored)

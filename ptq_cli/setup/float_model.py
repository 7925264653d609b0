"""The model file becomes the float ONNX model of all stages, in opsets that the runtime knows."""

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from ptq_cli.calibdata.bind import fixed_batch_size
from ptq_cli.calibdata.dataset.dataset import Dataset
from ptq_cli.core.errors import (
    InvalidOnnxError,
    ModelInputError,
    ParityError,
    RuntimeFailedError,
    UsageError,
)
from ptq_cli.core.memory import give_back_held_blocks
from ptq_cli.core.tensors import Array, TensorSpec, is_array
from ptq_cli.models import batch_axes
from ptq_cli.models.batch_axes import Axes
from ptq_cli.models.files.stored import StoredModel, read_mapped, read_model, serialize
from ptq_cli.models.files.storing import check_stored, is_large, store_mapped
from ptq_cli.models.fixed_inputs import fixed_earlier, shown_value
from ptq_cli.models.loading.onnx_source import input_specs, require_tensor_inputs
from ptq_cli.models.loading.open_model import open_model
from ptq_cli.models.loading.source import ExampleInputs, ModelKind, ModelSource, SourceFile
from ptq_cli.models.opset import opset_of
from ptq_cli.models.parity import (
    HALF_TOLERANCE,
    WITH_FILE,
    WITH_PYTORCH,
    largest_difference,
    require_parity,
)
from ptq_cli.models.preparing.interface import forget_contradicted
from ptq_cli.models.preparing.prepare_graph import Prepared, prepare_model
from ptq_cli.models.shapes import set_aside
from ptq_cli.recipe.sections import ModelSettings
from ptq_cli.runtime.narrow_types import DisabledOptimizers, disabled_optimizers, has_four_bits
from ptq_cli.runtime.session import Session
from ptq_cli.setup.example_inputs import Shapes, example_inputs, one_sample
from ptq_cli.setup.output_checks import require_data_output
from ptq_cli.setup.resolve import Resolved
from ptq_cli.setup.served_inputs import fitting_data, with_state_axes

SURELY_KNOWN = 22  # opset that every supported ONNX Runtime has; newer ones are tried


def know_foreign_types(model: ir.Model) -> int:
    """Note type and shape of what operators of other domains compute, and return of how many values.

    Where ONNX Runtime does not know an operator either, nothing is noted; running it says so.
    """
    values = {value.name: value for value in _unknown(model)}
    if not values:
        return 0
    asked = model.clone()
    set_aside(asked.graph)  # ONNX Runtime reads none of them
    found = {value.name: value for node in asked.graph for value in node.outputs}
    asked.graph.outputs[:] = [found[name] for name in values]
    try:
        specs = Session(serialize(asked), threads=1, optimize=False).output_specs
    except RuntimeFailedError:
        return 0
    for spec in specs:
        values[spec.name].type = ir.TensorType(ir.DataType.from_numpy(spec.dtype))
        values[spec.name].shape = ir.Shape(spec.shape)
    return len(specs)


def _unknown(model: ir.Model) -> list[ir.Value]:
    functions = {identifier[0] for identifier in model.functions}
    known = {"", "ai.onnx", *functions}
    nodes = [node for node in model.graph if node.domain not in known]
    return [value for node in nodes for value in node.outputs if value.name and value.type is None]


def require_known_opset(opset: int, what: str) -> None:
    """Check that ONNX Runtime can load a model of an opset."""
    if opset <= SURELY_KNOWN or _loads(opset):
        return
    newest = next(version for version in range(opset - 1, SURELY_KNOWN - 1, -1) if _loads(version))
    raise InvalidOnnxError(
        f"model '{what}' has opset {opset}, but the installed ONNX Runtime supports only {newest} and older",
        hint=f"export it with opset {newest}, or install a newer onnxruntime",
    )


def _loads(opset: int) -> bool:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", [value], [result])
    # The oldest format that may hold it: a newer one than the runtime's is refused for another reason.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        Session(onnx.ModelProto.SerializeToString(model))
    except RuntimeFailedError:
        return False
    return True


# Of a run that only compares the prepared model with its source; a slower one is not compared.
MOST_SECONDS = 60.0
# How many times as far from its file as that is from itself a prepared graph may be, and at most.
TIMES_OWN, MOST_UNSTEADY = 4.0, 0.1


@dataclass(frozen=True, kw_only=True)
class FloatModel:
    """A prepared float model.

    Attributes:
        parity: largest relative difference to the source on the example. Of ONNX it is None if nothing was
            rewritten, and where the file itself does not run on the example.
    """

    file: SourceFile
    model: ir.Model
    stored: StoredModel
    inputs: tuple[TensorSpec, ...]
    parity: float | None
    prepared: Prepared
    source_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the model that a user should know, a sentence each."""
        fixed = fixed_earlier(self.model).items()
        return (
            *self.source_notes,
            *(f"the input '{name}' is fixed to {shown_value(value)}" for name, value in fixed),
            *self.prepared.notes,
        )

    @property
    def compared_with(self) -> str:
        """Whose outputs ``parity`` compares with, in the genitive."""
        return "the file's" if self.file.kind is ModelKind.ONNX else "PyTorch's"


def open_source(settings: ModelSettings) -> ModelSource:
    """Open the model that a recipe names."""
    if settings.path is None:
        raise UsageError(
            "no model was given", hint="name its file, or set path = 'model.pt' under [model] in ptq.toml"
        )
    return open_model(Path(settings.path), settings)


def reading(source: ModelSource, dataset: Dataset | None, settings: ModelSettings) -> ModelSource:
    """A source whose inputs are those that it requires, and those that data or shapes name."""
    return source.with_optional({*(dataset.specs if dataset is not None else ()), *settings.input_shape})


def axes_told(source: ModelSource, wanted: batch_axes.Wanted) -> dict[str, int | str]:
    """The axes of the samples that an ONNX file tells of inputs that ``wanted`` does not name."""
    return batch_axes.told_axes(source.to_onnx({}), wanted) if source.file.kind is ModelKind.ONNX else {}


def float_model_of(
    resolved: Resolved,
    source: ModelSource,
    dataset: Dataset | None,
    *,
    always_compare: bool = False,
    output: Path | None = None,
) -> tuple[FloatModel, tuple[str, ...]]:
    """The float model of a recipe, and notes on the axes of samples that its file told."""
    recipe = resolved.recipe
    source = reading(source, dataset, recipe.model)
    told = with_state_axes(dataset, recipe.data, source, axes_told(source, recipe.data.batch_axis))
    if dataset is not None:
        dataset = fitting_data(dataset, recipe.data, source, {**told, **recipe.data.batch_axis})
    model = make_float_model(
        source,
        dataset,
        threads=resolved.machine.threads,
        shapes=recipe.model.input_shape,
        axes={**told, **recipe.data.batch_axis},
        allow_nan=recipe.calibration.allow_nonfinite,
        always_compare=always_compare,
        output=output,
    )
    return model, batch_axes.axis_notes(told)


def make_float_model(
    source: ModelSource,
    dataset: Dataset | None,
    *,
    threads: int,
    shapes: Shapes = MappingProxyType({}),
    axes: batch_axes.Wanted = MappingProxyType({}),
    allow_nan: bool = False,
    always_compare: bool = False,
    output: Path | None = None,
) -> FloatModel:
    """Export, prepare and compare with the source.

    The example is the first samples of the data, or made up from ``shapes`` or the model's own. Axes are
    those of samples that do not come first. With ``always_compare`` an ONNX file is run too that was prepared
    without new operators. A graph that is too large for one file waits where ``output`` will be, or where the
    system keeps temporary files.
    """
    what, is_onnx = source.file.path.name, source.file.kind is ModelKind.ONNX
    if is_onnx:
        batch_axes.require_axes(source.to_onnx({}), axes, what)
    known = batch_axes.input_axes(axes, source.input_names)
    example, expected = _run_source(source, example_inputs(source, shapes, dataset, known), known)
    exported = source.to_onnx(example, known)
    require_known_opset(opset_of(exported), what)
    if dataset is not None:
        require_tensor_inputs(exported, what)
    know_foreign_types(exported)
    prepared = prepare_model(exported, what, is_traced=not is_onnx)
    forget_contradicted(prepared.model, _shapes(example))
    batch_axes.note_axes(prepared.model, axes, what, _output_axes(prepared.model, axes, example, threads))
    stored = _store(prepared.model, source.file, output)
    inputs = input_specs(prepared.model)
    if fixed_batch_size(inputs) == 1:  # The model or its exporter keeps no dynamic batch axis.
        example = one_sample(example, known)
        expected = source.run(example) if expected is not None else None
    if is_onnx and (always_compare or prepared.is_changed or source.fixed):
        expected = _run_file(source.file.path, {**example, **source.fixed}, threads)
    # Made-up inputs may well be outside what a function is defined on.
    allow_nan = allow_nan or (is_onnx and dataset is None)
    parity, of_file = None, 0.0
    if expected is not None or prepared.is_declared:
        session = Session(stored, threads=threads)
        parity, seen, of_file = _compared(session, prepared, source, example, expected, allow_nan=allow_nan)
        if forget_contradicted(prepared.model, seen):
            # What is stored again is read from where it was stored first.
            earlier, stored = stored, _store(prepared.model, source.file, output)
            earlier.discard()
    return FloatModel(
        file=source.file,
        model=prepared.model,
        stored=stored,
        inputs=inputs,
        parity=parity,
        prepared=prepared,
        source_notes=(*source.notes, *_unsteady_note(of_file)),
    )


def _compared(
    session: Session,
    prepared: Prepared,
    source: ModelSource,
    example: ExampleInputs,
    expected: list[Array] | None,
    *,
    allow_nan: bool,
) -> tuple[float | None, Shapes, float]:
    """How far the prepared graph is from its source, and the shapes of what went in and came out.

    At last, if a file is further from itself than a graph may be from it, how far.
    """
    file, is_onnx = source.file, source.file.kind is ModelKind.ONNX
    parity, of_file = None, 0.0
    found = _run_or_none(session, example) if expected is None else session.run(example)
    names = session.outputs
    del session  # What is compared may take as much memory.
    give_back_held_blocks()
    if expected is not None and found is not None:
        compared = WITH_FILE if is_onnx else WITH_PYTORCH
        compared = replace(compared, tolerance=HALF_TOLERANCE) if prepared.widened else compared
        both = _comparable(expected, found, names, is_onnx=is_onnx)
        require = partial(require_parity, *both, file.path.name, allow_nan=allow_nan)
        try:
            parity = require(compared=compared)
        except ParityError:
            fed = {**example, **source.fixed}
            of_file = _own_difference(file.path, fed, both[0], both[2]) if is_onnx else 0.0
            if not of_file > compared.tolerance:
                raise
            parity = require(compared=replace(compared, tolerance=min(TIMES_OWN * of_file, MOST_UNSTEADY)))
    outputs = dict(zip(names, found or (), strict=False))
    return parity, _shapes({**example, **outputs}), of_file


def _own_difference(
    path: Path, example: ExampleInputs, expected: Sequence[Array], names: Sequence[str]
) -> float:
    """How far outputs of a file are from those without ONNX Runtime's optimizations: rounding alone differs.

    Behind a loop that feeds itself, or a choice that nearly is a tie, the last bit becomes a visible one.
    """
    session = Session(_as_opened(path), threads=1, optimize=False)
    found = _run_or_none(session, example)
    if found is None:
        return 0.0
    made = dict(zip(session.outputs, found, strict=True))
    return largest_difference(expected, [made[name] for name in names])


def _unsteady_note(of_file: float) -> tuple[str, ...]:
    if not of_file:
        return ()
    return (
        f"outputs of the file itself differ by up to {of_file:.1%} with ONNX Runtime's optimizations off: "
        "roundings in the last bit decide there, as behind a loop that feeds itself",
    )


def _shapes(arrays: Mapping[str, Array]) -> Mapping[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items() if is_array(array)}


def _store(model: ir.Model, file: SourceFile, output: Path | None) -> StoredModel:
    path = output or Path(tempfile.gettempdir()) / "model.onnx"
    if is_large(model):
        require_data_output(path, file.path)
    stored = store_mapped(model, path.parent, path.name)
    check_stored(stored, model, file.path.name)
    return stored


def _run_file(path: Path, example: ExampleInputs, threads: int) -> list[Array] | None:
    try:
        session = Session(_as_opened(path), threads=threads)
    except RuntimeFailedError:
        return None
    found = _run_or_none(session, example)
    del session  # The prepared model's comes next.
    give_back_held_blocks()
    return found


def _as_opened(path: Path) -> Path | StoredModel:
    """The file as ONNX Runtime opens it: its path where bytes would take much memory."""
    left = read_mapped(path)
    if left is None:
        return read_model(path)
    content = left.message.SerializeToString()
    return (
        read_model(path)
        if has_four_bits(content) or disabled_optimizers(content) != DisabledOptimizers()
        else path
    )


def _run_or_none(session: Session, example: ExampleInputs) -> list[Array] | None:
    try:
        return session.run(example, most_seconds=MOST_SECONDS)
    except RuntimeFailedError:
        # Made-up sizes need not fit a model, and for made-up values a loop need not end; what fails on data
        # says so when it is calibrated.
        return None


def _comparable(
    expected: Sequence[Array], found: Sequence[Array], names: Sequence[str], *, is_onnx: bool
) -> tuple[Sequence[Array], Sequence[Array], Sequence[str]]:
    """Leave out sequences, and the indices that a file computes beside numbers: the last bit breaks a tie."""
    arrays = [index for index, array in enumerate(expected) if is_array(array)]
    kept = [index for index in arrays if expected[index].dtype.kind == "f"] or arrays
    if not is_onnx or len(expected) != len(found):
        return expected, found, names
    return [expected[i] for i in kept], [found[i] for i in kept], [names[i] for i in kept]


def _output_axes(
    model: ir.Model, wanted: batch_axes.Wanted, example: ExampleInputs, threads: int
) -> dict[str, int | None]:
    """The axes of the samples of outputs: sizes show them, or else a run of one and of two samples."""
    if not wanted:
        return {}
    found = batch_axes.found_axes(model, wanted)
    known = {*found, *wanted}
    if all(value.name in known for value in model.graph.outputs) or is_large(model):
        return found
    axes = batch_axes.input_axes(wanted, list(example))
    session = Session(serialize(model), threads=threads)
    try:
        runs = [session.run(inputs) for inputs in (one_sample(example, axes), example)]
    except RuntimeFailedError:
        return found  # It takes batches of one size alone.
    one, two = (dict(zip(session.outputs, arrays, strict=True)) for arrays in runs)
    return {**batch_axes.measured_axes(one, two), **found}


def _run_source(
    source: ModelSource, example: ExampleInputs, axes: Axes
) -> tuple[ExampleInputs, list[Array] | None]:
    """The example that the model takes, and what it computes: it may allow batches of one alone."""
    try:
        return example, source.run(example)
    except ModelInputError:
        single = one_sample(example, axes)
        with contextlib.suppress(ModelInputError):
            return single, source.run(single)
        raise

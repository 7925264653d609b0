"""The models that ``bench`` lets take turns: that they belong together, and what they all take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ptq_cli.core.errors import ModelFormatError, ModelInputError
from ptq_cli.core.tensors import TensorSpec, format_shape
from ptq_cli.core.words import require_known
from ptq_cli.models.batch_axes import note_told_axes
from ptq_cli.models.files.stored import StoredModel, serialize
from ptq_cli.models.fixed_inputs import fix_inputs, fixed_earlier, unknown_input
from ptq_cli.models.loading.onnx_source import input_specs, load_onnx
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import known_targets, load_target
from ptq_cli.qdq.read.quantized_file import TARGET
from ptq_cli.runtime.engine import Engine
from ptq_cli.runtime.engine_registry import ENGINES, ONNX_RUNTIME, measuring_engine


@dataclass(frozen=True, kw_only=True)
class BenchedModels:
    """Models with the same inputs.

    Attributes:
        graphs: what is in them, with inputs fixed.
        timed: what runs: the files, or graphs that were changed.
        specs: the inputs that all take; a size that one of them fixes is fixed.
    """

    paths: tuple[Path, ...]
    graphs: tuple[ir.Model, ...]
    timed: tuple[Path | StoredModel, ...]
    specs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()

    def shaped(self) -> ir.Model:
        """The first graph with the sizes that any of the models fixes, to make up inputs for."""
        graph, shapes = self.graphs[0].clone(), {spec.name: spec.shape for spec in self.specs}
        for value in graph.graph.inputs:
            if value.name in shapes and value.shape is not None:
                sizes = zip(value.shape, shapes[value.name], strict=True)
                value.shape = ir.Shape([size if fixed is None else fixed for size, fixed in sizes])
        return graph

    def targets(self, target: Target) -> tuple[Target, ...]:
        """The target that each file is for; ``target`` if it does not say one of ptq's own."""
        noted = [graph.metadata_props.get(TARGET, "") for graph in self.graphs]
        others = {name: load_target(name) for name in {*noted} - {target.name} if name in known_targets()}
        return tuple(others.get(name, target) for name in noted)

    def engines(self, names: Sequence[str], target: Target) -> tuple[Engine, ...]:
        """The runtimes of these names; without any, those of the targets that the files are for."""
        for name in names:
            require_known("runtime", name, tuple(ENGINES))
        found = [ENGINES[name] for name in names] or [
            measuring_engine(target if noted == target.name else load_target(noted))
            for graph in self.graphs
            if (noted := graph.metadata_props.get(TARGET, "")) in (*known_targets(), target.name)
        ]
        for engine in found:
            engine.require()
        return tuple(dict.fromkeys(found)) or (ONNX_RUNTIME,)


def open_models(
    paths: Sequence[Path], values: Mapping[str, Any], batch_axis: Mapping[str, int | str]
) -> BenchedModels:
    """The models of files."""
    graphs = [_load(path) for path in paths]
    timed = _with_fixed(graphs, paths, values)
    notes = [
        note
        for graph, path in zip(graphs, paths, strict=True)
        for note in note_told_axes(graph, batch_axis, path.name)
    ]
    specs = _common_inputs(paths, [input_specs(graph) for graph in graphs])
    return BenchedModels(
        paths=tuple(paths),
        graphs=tuple(graphs),
        timed=tuple(timed),
        specs=specs,
        notes=tuple(dict.fromkeys(notes)),
    )


def shown_names(paths: Sequence[Path]) -> list[str]:
    """The names of files, with their folders if two have the same name.

    Example:
        >>> shown_names([Path("a/x.onnx"), Path("a/y.onnx")])
        ['x.onnx', 'y.onnx']
        >>> shown_names([Path("x.onnx"), Path("old/x.onnx")])
        ['x.onnx', 'old/x.onnx']
    """
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _load(path: Path) -> ir.Model:
    kind = detect_kind(path)
    if kind is not ModelKind.ONNX:
        raise ModelFormatError(
            f"model '{path.name}' is a {kind.value}, expected ONNX",
            hint="ptq export --float converts every kind of model to ONNX",
        )
    return load_onnx(path)


def _with_fixed(
    graphs: Sequence[ir.Model], paths: Sequence[Path], values: Mapping[str, Any]
) -> list[Path | StoredModel]:
    """Fix inputs of the graphs that have them, and return what is timed: files, or changed graphs."""
    timed: list[Path | StoredModel] = []
    inputs = [[value.name or "" for value in graph.graph.inputs] for graph in graphs]
    for name in values:
        if not any(
            name in names or name in fixed_earlier(graph) for names, graph in zip(inputs, graphs, strict=True)
        ):
            raise unknown_input(name, inputs[0], paths[0].name)
    for graph, path, names in zip(graphs, paths, inputs, strict=True):
        known = {*names, *fixed_earlier(graph)}
        own = fix_inputs(graph, {name: value for name, value in values.items() if name in known}, path.name)
        timed.append(serialize(graph) if own else path)
    return timed


def _common_inputs(paths: Sequence[Path], specs: Sequence[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """The inputs that all models take: a size that one of them fixes is fixed."""
    common = {spec.name: spec for spec in specs[0]}
    for path, others in zip(paths[1:], specs[1:], strict=True):
        for name in sorted({*common, *(spec.name for spec in others)}):
            one, other = common.get(name), next((spec for spec in others if spec.name == name), None)
            if one is None or other is None or one.dtype != other.dtype or not _alike(one.shape, other.shape):
                mine, theirs = shown_names([paths[0], path])
                raise ModelInputError(
                    f"'{mine}' has {_described(one, name)}, '{theirs}' has {_described(other, name)}",
                    hint="compare models with the same inputs, such as a model and its own quantized model",
                )
            sizes = zip(one.shape, other.shape, strict=True)
            common[name] = replace(one, shape=tuple(two if first is None else first for first, two in sizes))
    return tuple(common.values())


def _alike(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def _described(spec: TensorSpec | None, name: str) -> str:
    return (
        f"no input '{name}'" if spec is None else f"input {spec.name}: {spec.dtype}{format_shape(spec.shape)}"
    )

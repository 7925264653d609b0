"""A model in stages that runs with each stage in its floating or its quantized form.

A model with one layer changed is the same before that layer: only what comes behind it is run again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.arithmetic import QuantParameters, dequantize, fake_quantize, quantize
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.cut_stages import Form, Stage, joined_stages
from ptq_cli.qdq.read.twin_graphs import ActivationPair
from ptq_cli.runtime.session import PREPACKED, Session

JOINED = 16  # stages that run as one where only a tensor before them is on a grid


@dataclass(frozen=True)
class Held:
    """A tensor between two stages: as floats, as integers, or as both where a stage makes both."""

    floats: Array | None = None
    integers: Array | None = None

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(array.nbytes for array in (self.floats, self.integers) if array is not None)


Tensors = Mapping[str, Held]
"""Tensors between stages, by the name in the float model."""


def floats_of(held: Held, pair: ActivationPair | None) -> Array:
    """Return a tensor's real values; those that were never floats have a pair."""
    if held.floats is not None:
        return held.floats
    # A number is made of a tensor of rank 0, which cannot be fed.
    return np.asarray(dequantize(held.integers, pair.parameters))  # type: ignore[arg-type, union-attr]


def integers_of(held: Held, pair: ActivationPair) -> Array:
    """Return a tensor's integers."""
    if held.integers is not None:
        return held.integers
    floats = np.asarray(held.floats)
    # ONNX Runtime makes the least integer of NaN, as it does of -inf.
    floats = np.where(np.isnan(floats), -np.inf, floats)
    return np.asarray(quantize(floats, pair.parameters))


@dataclass(frozen=True)
class _Row:
    """Stages one after the other, which also run as one in their floating form."""

    whole: Stage
    session: Session
    indices: tuple[int, ...]


class StagedModel:
    """Sessions for both forms of each stage, opened once; by layer, the stage of its own quantization."""

    def __init__(
        self,
        stages: Sequence[Stage],
        pairs: Mapping[str, ActivationPair],
        output: str,
        others: Collection[str] = (),
    ) -> None:
        """Open the sessions; a variant is judged by ``output``; ``changed_outputs`` has the others, too."""
        self.stages = tuple(stages)
        self._pairs = pairs
        self._output = output
        self._outputs = {output, *others}
        self._floating = [_session(stage.floating) for stage in stages]
        self._quantized = [
            _session(stage.quantized) if stage.quantized else floating
            for stage, floating in zip(stages, self._floating, strict=True)
        ]
        self.layers = {stage.layer: index for index, stage in enumerate(stages) if stage.layer}
        self._needed = self._before_output()
        self._rows = [
            _Row(self.stages[index], self._floating[index], (index,)) for index in sorted(self._needed)
        ]

    def join(self, model: ir.Model, together: int = JOINED) -> None:
        """Open sessions for so many stages in a row of the float ``model``, for ``on_grids``."""
        needed = sorted(self._needed)
        joined = joined_stages(model, [self.stages[index] for index in needed], together)
        self._rows = [
            _Row(whole, _session(whole.floating), tuple(needed[first : first + together]))
            for first, whole in zip(range(0, len(needed), together), joined, strict=True)
        ]

    def run(self, inputs: Mapping[str, Array], *, quantized: bool) -> dict[str, Held]:
        """Return every tensor between stages, and the outputs, of the float or of the quantized model."""
        tensors = {name: self._fed(name, array, quantized=quantized) for name, array in inputs.items()}
        for index in range(len(self.stages)):
            tensors.update(self._run_stage(index, tensors, quantized=quantized))
        return tensors

    def behind(self, layer: str) -> tuple[int, ...]:
        """Return the stages that run again where a layer is changed, in order: its own first."""
        own = self.layers[layer]
        touched, indices = set(self.stages[own].outputs), [own]
        for index in range(own + 1, len(self.stages)):
            if index in self._needed and not touched.isdisjoint(self.stages[index].inputs):
                indices.append(index)
                touched.update(self.stages[index].outputs)
        return tuple(indices)

    def changed(self, layer: str, base: Tensors, *, quantized: bool) -> Array:
        """Return the output with one layer in this form, and all others as in ``base``, the other form.

        A layer that the output does not depend on changes nothing.
        """
        tensors = self._changed_tensors(layer, base, quantized=quantized)
        return self.floats(self._output, tensors[self._output])

    def changed_outputs(self, layer: str, base: Tensors) -> dict[str, Array]:
        """Return every output of the float model, whose tensors are ``base``, with one layer quantized."""
        tensors = self._changed_tensors(layer, base, quantized=True)
        return {name: self.floats(name, tensors[name]) for name in self._outputs}

    def on_grids(self, grids: Mapping[str, QuantParameters], base: Tensors) -> dict[str, Array]:
        """Return the outputs of the float model, whose tensors are ``base``, with some of them on grids."""
        tensors, touched = _Overlay(base), set(grids)
        for name, parameters in grids.items():
            tensors.made[name] = Held(fake_quantize(self.floats(name, base[name]), parameters))
        for row in self._rows:
            steps = [(self.stages[index], self._floating[index]) for index in row.indices]
            # Stages in a row run as one, unless a tensor on a grid is made inside.
            if all(grids.keys().isdisjoint(stage.outputs) for stage, _ in steps):
                steps = [(row.whole, row.session)]
            for stage, session in steps:
                if touched.isdisjoint(stage.inputs):
                    continue
                made = self._run_form(stage.floating, session, tensors)
                for name in set(made) & set(grids):
                    made[name] = Held(fake_quantize(self.floats(name, made[name]), grids[name]))
                tensors.made.update(made)
                touched |= set(made)
        return {name: self.floats(name, tensors[name]) for name in self._outputs}

    def _changed_tensors(self, layer: str, base: Tensors, *, quantized: bool) -> "_Overlay":
        """Run again the stages behind a layer; only outputs are kept."""
        indices = self.behind(layer)
        last_reader = {name: index for index in indices for name in self.stages[index].inputs}
        tensors = _Overlay(base)
        for index in indices:
            form = quantized if index == indices[0] else not quantized
            tensors.made.update(self._run_stage(index, tensors, quantized=form))
            for name in self.stages[index].inputs:
                if last_reader[name] == index and name not in self._outputs:
                    tensors.made.pop(name, None)
        return tensors

    def floats(self, tensor: str, held: Held) -> Array:
        """Return a tensor's real values."""
        return floats_of(held, self._pairs.get(tensor))

    def integers(self, tensor: str, held: Held) -> Array:
        """Return a tensor's integers."""
        return integers_of(held, self._pairs[tensor])

    def _fed(self, name: str, array: Array, *, quantized: bool) -> Held:
        # Once here, and not again in each model that has another layer changed.
        return Held(array, self.integers(name, Held(array)) if quantized and name in self._pairs else None)

    def _run_stage(self, index: int, tensors: Tensors, *, quantized: bool) -> dict[str, Held]:
        stage = self.stages[index]
        form: Form = stage.quantized if quantized and stage.quantized is not None else stage.floating
        return self._run_form(form, (self._quantized if quantized else self._floating)[index], tensors)

    def _run_form(self, form: Form, session: Session, tensors: Tensors) -> dict[str, Held]:
        feeds = {
            port.name: (self.integers if port.integers else self.floats)(port.tensor, tensors[port.tensor])
            for port in form.inputs
        }
        made: dict[str, Held] = {}
        for port, array in zip(form.outputs, session.run(feeds), strict=True):
            before = made.get(port.tensor, Held())
            made[port.tensor] = Held(
                before.floats if port.integers else array, array if port.integers else before.integers
            )
        return made

    def _before_output(self) -> frozenset[int]:
        wanted, needed = set(self._outputs), set()
        for index in reversed(range(len(self.stages))):
            if wanted & set(self.stages[index].outputs):
                needed.add(index)
                wanted |= set(self.stages[index].inputs)
        return frozenset(needed)


def _session(form: Form) -> Session:
    # One thread each: whole variants run side by side, which no operator has to wait for.
    return Session(form.model, threads=1, place=PREPACKED)


class _Overlay(dict[str, Held]):
    """Tensors of a variant, above those that it shares with the model that it is a variant of."""

    def __init__(self, base: Tensors) -> None:
        super().__init__()
        self.made: dict[str, Held] = {}
        self._base = base

    def __getitem__(self, name: str) -> Held:
        return self.made[name] if name in self.made else self._base[name]

"""Weights of a float model, found by what they round to: names and layouts differ from tool to tool."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import constants_of
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.qdq.read.quantized_file import named
from ptq_cli.repair.repaired_weight import file_steps
from ptq_cli.repair.safe_weights import Float64s
from ptq_cli.repair.weight_sites import WeightSite

# How far a weight may be from its integer, in steps: tools that learn to round take the next one, too.
ROUNDED = 1.01
_BIAS_STEPS, _RELATIVE = 2.0, 1e-4  # how near a bias is, of int32 and after normalizations were folded
_LOOKED_AT = 4096  # elements that rule most candidates out
_ENDS = 126.5  # steps; beyond this a tool may have cut off anything


class FloatWeights:
    """Float constants of a model, by their size; prepared ones, with folded normalizations, after its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = _by_size(named(load_onnx(path)))
        self._prepared: dict[int, list[Array]] | None = None

    def of(self, site: WeightSite) -> Array | None:
        """Return the floats that a stored weight was rounded from, flat as it is stored; None if none fits."""
        steps, scales, zeros = file_steps(site)
        shape = site.stored.const_value.shape.numpy() if site.stored.const_value is not None else ()
        for candidates in self._forms():
            for array in candidates.get(steps.size, ()):
                for flat in _layouts(array, shape):
                    if _fits(flat, steps, scales, zeros):
                        return flat
        return None

    def has(self, bias: Float64s, step: Float64s | float) -> bool:
        """Return whether the model holds a bias, within a few steps: its tool has not changed it."""
        for candidates in self._forms():
            for array in candidates.get(bias.size, ()):
                near = np.abs(array.reshape(-1) - bias) <= _BIAS_STEPS * step + _RELATIVE * np.abs(bias)
                if near.all():
                    return True
        return False

    def _forms(self) -> Iterator[dict[int, list[Array]]]:
        yield self._own
        if self._prepared is None:
            self._prepared = _by_size(prepare(load_onnx(self._path), self._path.name))
        yield self._prepared


def _by_size(model: ir.Model) -> dict[int, list[Array]]:
    found: dict[int, list[Array]] = {}
    for value in constants_of(model):
        tensor = value.const_value
        if tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1:
            found.setdefault(tensor.size, []).append(np.asarray(tensor.numpy(), np.float32))
    return found


def _layouts(array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield an array as it may be stored elsewhere: as it is, and turned."""
    yield array.reshape(-1)
    if array.ndim == 2:
        yield array.T.reshape(-1)


def _fits(floats: Array, steps: Array, scales: Array, zeros: Array) -> bool:
    part = slice(None, None, max(1, floats.size // _LOOKED_AT))
    return all(
        _is_near(floats[at], np.rint(steps[at]), scales[at], zeros[at]) for at in (part, slice(None))
    )


def _is_near(floats: Array, codes: Array, scales: Array, zeros: Array) -> bool:
    exact = np.divide(floats, scales, out=np.zeros(floats.size), where=scales > 0)
    inside = np.abs(codes + zeros) < _ENDS
    cut = ~inside & (np.sign(exact) == np.sign(codes)) & (np.abs(exact) > np.abs(codes))
    return bool(((np.abs(exact - codes) <= ROUNDED) | cut).all())

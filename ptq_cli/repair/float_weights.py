"""Weights of a float model, found by what they round to: names and layouts differ from tool to tool."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ptq_cli.models.files.stored import constants_of
from ptq_cli.models.loading.onnx_source import load_onnx
from ptq_cli.models.preparing.prepare_graph import prepare
from ptq_cli.qdq.read.quantized_file import named
from ptq_cli.repair.raw_file import load_only_onnx
from ptq_cli.repair.repaired_weight import FileWeight
from ptq_cli.repair.safe_weights import Elements, Reals
from ptq_cli.repair.weight_sites import UnsafeWeight

# How far a weight may be from its integer, in steps: tools that learn to round take the next one, too.
_ROUNDED = 1.01
_BIAS_STEPS, _RELATIVE = 2.0, 1e-4  # how near a bias is, of int32 and after normalizations were folded
_LOOKED_AT = 8  # indices of each axis, whose elements rule most candidates out
_ENDS = 126.5  # steps; beyond this a tool may have cut off anything


class FloatWeights:
    """Float constants of a model, by their size; prepared ones, with folded normalizations, after its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = _by_size(named(load_only_onnx(path)))
        self._prepared: dict[int, list[Elements]] | None = None

    def of(self, site: UnsafeWeight) -> Elements | None:
        """Return the floats that a stored weight was rounded from, as it is stored; None if none fits."""
        file = FileWeight.of(site)
        for candidates in self._forms():
            for array in candidates.get(file.steps.size, ()):
                for floats in _layouts(array, file.steps.shape):
                    if _fits(floats, file):
                        return floats
        return None

    def has(self, bias: Reals, step: Reals | float) -> bool:
        """Return whether the model holds a bias, within a few steps: its tool has not changed it."""
        for candidates in self._forms():
            for array in candidates.get(bias.size, ()):
                near = np.abs(array.reshape(-1) - bias) <= _BIAS_STEPS * step + _RELATIVE * np.abs(bias)
                if near.all():
                    return True
        return False

    def _forms(self) -> Iterator[dict[int, list[Elements]]]:
        yield self._own
        if self._prepared is None:
            self._prepared = _by_size(prepare(load_onnx(self._path), self._path.name))
        yield self._prepared


def _by_size(model: ir.Model) -> dict[int, list[Elements]]:
    found: dict[int, list[Elements]] = {}
    for value in constants_of(model):
        tensor = value.const_value
        if tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1:
            found.setdefault(tensor.size, []).append(np.asarray(tensor.numpy(), np.float32))
    return found


def _layouts(array: Elements, shape: tuple[int, ...]) -> Iterator[Elements]:
    """Yield an array as it may be stored elsewhere: as it is, and turned."""
    yield array.reshape(shape)
    if array.ndim == 2:
        yield np.ascontiguousarray(array.T).reshape(shape)


def _fits(floats: Elements, file: FileWeight) -> bool:
    few = tuple(slice(None, None, max(1, size // _LOOKED_AT)) for size in floats.shape)
    return all(_is_near(floats, file, part) for part in (few, tuple(map(slice, floats.shape))))


def _is_near(floats: Elements, file: FileWeight, part: tuple[slice, ...]) -> bool:
    """Whether floats round to the integers of a file; a tool may have cut off what is beyond them."""
    shape = floats.shape
    scales, zeros = (np.broadcast_to(item, shape)[part] for item in (file.scales, file.zeros))
    codes = np.rint(file.steps[part])
    exact = floats[part] / np.where(scales > 0, scales, np.float32(1))
    inside = np.abs(codes + zeros) < _ENDS
    cut = ~inside & (np.sign(exact) == np.sign(codes)) & (np.abs(exact) > np.abs(codes))
    return bool(((np.abs(exact - codes) <= _ROUNDED) | cut).all())

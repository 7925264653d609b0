"""New integers, scales and biases of a stored weight, and the constants of the file that hold them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import input_at
from ptq_cli.repair.raw_file import ConstantReader, RawFile
from ptq_cli.repair.safe_weights import Elements, Reals, needed_factors, safe_integers
from ptq_cli.repair.weight_sites import BiasUse, Layer, Layout, ScaleUse, UnsafeWeight

_SURELY = 0.499  # steps from an integer, within which any arithmetic rounds to it
Changed = tuple[ir.Value, Elements]  # a constant, and what it becomes


@dataclass(frozen=True, kw_only=True)
class Biases:
    """The int32 bias of a layer in steps of its new scale, not yet rounded.

    Shapes: steps: (O,), or (1,); step: as they are, or one.
    """

    layer: Layer
    steps: Reals
    step: Reals


@dataclass(frozen=True, kw_only=True)
class RepairedWeight:
    """What became of a stored weight.

    Attributes:
        change: the largest change of a weight, in steps of the scale that it had.
        factor: of the scale that grew most.
        file: the weight that the file had.
        integers: around 0, that it has now.
        factors: of its scales, so that they broadcast to it.
        floats: the weight of the float model; None where it was not found.

    Shapes: integers, floats: as the stored weight.
    """

    site: UnsafeWeight
    change: float
    factor: float
    file: "FileWeight"
    integers: Elements
    factors: Elements
    floats: Elements | None
    biases: tuple[Biases, ...]

    def difference(self, *, from_floats: bool) -> Elements:
        """Return what was added to each weight: of the float model, or of the file."""
        now = self.integers * (self.factors * self.file.scales)
        before = (
            self.floats if from_floats and self.floats is not None else self.file.steps * self.file.scales
        )
        difference: Elements = now - before
        return difference


def array_of(value: ir.Value) -> Elements:
    """Return the array of a constant."""
    assert value.const_value is not None  # noqa: S101 - only constants are looked at
    return np.asarray(value.const_value.numpy())


@dataclass(frozen=True, kw_only=True)
class FileWeight:
    """A stored weight in steps of its scale.

    Attributes:
        steps: int8 where the file holds such integers around 0; otherwise float32.
        scales, zeros: so that they broadcast to it.
    """

    steps: Elements
    scales: Elements
    zeros: Elements

    @classmethod
    def of(cls, site: UnsafeWeight) -> "FileWeight":
        """Read the weight of a site."""
        stored = array_of(site.stored)
        scales = site.scales[0].spread(array_of(site.scales[0].value).astype(np.float32), stored.ndim)
        zeros: Elements = np.zeros((), np.int64)
        if site.zero_points:
            zeros = site.zero_points[0].spread(
                array_of(site.zero_points[0].value).astype(np.int64), stored.ndim
            )
        if site.is_float:
            return cls(steps=_in_steps(stored, scales, zeros), scales=scales, zeros=zeros)
        if stored.dtype == np.int8 and not zeros.any():
            return cls(steps=stored, scales=scales, zeros=zeros)
        return cls(steps=(stored.astype(np.int64) - zeros).astype(np.float32), scales=scales, zeros=zeros)

    def rounded(self, floats: Elements) -> Elements:
        """Return floats in steps, within the range that the file's integers have."""
        return _in_steps(floats, self.scales, self.zeros)


def _in_steps(floats: Elements, scales: Elements, zeros: Elements) -> Elements:
    safe = np.where(scales > 0, scales, np.float32(1))
    steps: Elements = np.clip(floats / safe, -128 - zeros, 127 - zeros).astype(np.float32)
    return steps


def repair_weight(raw: RawFile, site: UnsafeWeight, floats: Elements | None, threads: int) -> RepairedWeight:
    """Decide a weight anew, and write it into the message.

    ``floats`` are those of the float model, in the layout of the stored weight; None to round the file's own.
    """
    file, layout = FileWeight.of(site), site.layout()
    codes = np.rint(file.steps) + file.zeros if file.steps.dtype != np.int8 else file.steps
    in_file = layout.rows(codes)
    rows = in_file
    if floats is not None or codes is not file.steps:
        steps = file.steps if floats is None else file.rounded(floats)
        rows = layout.rows(steps)
    per_row = _each_row_has_its_own(site, layout, has_zeros=bool(file.zeros.any()))
    chosen = needed_factors(in_file, threads) > 1.0 if per_row else np.ones(len(rows.steps), bool)
    scales = array_of(site.scales[0].value)
    safe = safe_integers(
        rows, chosen, _representable(scales, per_row=per_row), per_row=per_row, threads=threads
    )
    if (needed_factors(replace(rows, steps=safe.integers), threads)[chosen] > 1.0).any():
        raise RuntimeError(f"two neighbors of '{site.stored.name}' exceed their sum")
    decided = _Decided(
        integers=np.where(_as_rows(chosen, layout), layout.back(safe.integers), codes),
        chosen=chosen,
        factors=safe.factors,
        layout=layout,
        file=file,
    )
    biases = _write(raw, site, decided)
    kept_zeros = np.where(_as_rows(chosen, layout), 0, file.zeros)
    return RepairedWeight(
        site=site,
        change=float(safe.changes.max(initial=0.0)),
        factor=float(safe.factors.max(initial=1.0)),
        file=file,
        integers=decided.integers - kept_zeros if kept_zeros.any() else decided.integers,
        factors=_as_rows(safe.factors, layout),
        floats=floats,
        biases=tuple(biases),
    )


def _as_rows(values: Elements, layout: Layout) -> Elements:
    """Return what each row has so that it broadcasts to the stored weight."""
    return values.reshape([-1 if axis == layout.axis else 1 for axis in range(len(layout.shape))])


def _representable(scales: Elements, *, per_row: bool) -> Callable[[Reals], Reals]:
    """Return what makes of factors those that scales of the file's type can grow by: no smaller ones."""
    old = scales.reshape(-1).astype(np.float64)
    first = old if per_row else old[old > 0][:1]

    def representable(factors: Reals) -> Reals:
        if not first.size:
            return factors
        exact = first * factors
        wide = exact.astype(scales.dtype)
        if scales.dtype.kind == "f":
            wide = np.where(
                wide.astype(np.float64) < exact, np.nextafter(wide, scales.dtype.type(np.inf)), wide
            )
        return np.divide(wide.astype(np.float64), first, out=factors.copy(), where=first > 0)

    return representable


def _each_row_has_its_own(site: UnsafeWeight, layout: Layout, *, has_zeros: bool) -> bool:
    """Whether each output channel has scales of its own, that no other shares."""
    axes = {item.axis for item in (*site.scales, *(site.zero_points if has_zeros else ()))}
    if layout.axis is None or axes != {layout.axis}:
        return False
    for layer in site.layers:
        if layer.bias is not None and not layer.bias.is_float:
            sizes = {array_of(layer.bias.value).size}
            sizes |= {array_of(layer.bias.scale[1]).size} if layer.bias.scale is not None else set()
            if sizes != {layout.shape[layout.axis]}:
                return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """New integers as they are stored, which rows they are new in, and the factors of these rows' scales."""

    integers: Elements
    chosen: Elements
    factors: Reals
    layout: Layout
    file: FileWeight

    def by_value(self, item: ScaleUse) -> Reals:
        """Return the factor of each value of a scale."""
        return self.factors if item.axis == self.layout.axis else self.factors[:1]


def _write(raw: RawFile, site: UnsafeWeight, decided: _Decided) -> list[Biases]:
    changes: dict[ConstantReader, Changed] = {}
    for item in site.scales:
        old = array_of(item.value)
        grown = old.reshape(-1).astype(np.float64) * decided.by_value(item)
        changes[item.use] = item.value, grown.astype(old.dtype).reshape(old.shape)
    for item in site.zero_points:
        old = array_of(item.value)
        kept = ~decided.chosen if item.axis == decided.layout.axis else ~decided.chosen[:1]
        changes[item.use] = item.value, (old.reshape(-1) * kept).reshape(old.shape)
    biases = []
    for layer in site.layers:
        if layer.bias is not None and not layer.bias.is_float:
            scales = array_of(site.scales[0].value).reshape(-1).astype(np.float64)
            found, of_bias = _repaired_bias(layer, layer.bias, decided.factors, scales)
            biases.append(found)
            changes |= of_bias
    stored = array_of(site.stored)
    made = decided.integers.reshape(stored.shape)
    if site.is_float:
        grid = site.scales[0].spread(changes[site.scales[0].use][1], stored.ndim)
        made = _floats_on(stored, made, grid, _as_rows(decided.chosen, decided.layout))
    changes |= dict.fromkeys(site.readers, (site.stored, made))
    set_all(raw, changes)
    return biases


def _floats_on(floats: Elements, integers: Elements, grid: Elements, is_chosen: Elements) -> Elements:
    """Return floats that a QuantizeLinear makes these integers of: those of the file wherever it does."""
    steps = floats / np.where(grid > 0, grid, np.float32(1))
    keeps = (np.rint(steps) == integers) & (np.abs(steps - integers) < _SURELY)
    return np.where(keeps | ~is_chosen, floats, integers * grid)


def _repaired_bias(
    layer: Layer, bias: BiasUse, factors: Reals, scales: Reals
) -> tuple[Biases, dict[ConstantReader, Changed]]:
    """Return a bias in steps of its new scale, and what changes in the file."""
    old = array_of(bias.value)
    ratio, changes = _of_size(factors, old.size), dict[ConstantReader, Changed]()
    if bias.scale is not None:
        use, value = bias.scale
        before = array_of(value).astype(np.float64).reshape(-1)
        after = (before * _of_size(factors, before.size)).astype(array_of(value).dtype)
        ratio = np.divide(after, before, out=_of_size(factors, before.size).copy(), where=before > 0)
        changes[use] = value, after.reshape(array_of(value).shape)
        step = after.astype(np.float64)
    else:
        x_scale = input_at(layer.node, 1)
        known = x_scale is not None and x_scale.const_value is not None
        step = (
            _of_size(scales, old.size)
            * ratio
            * (float(array_of(x_scale).reshape(-1)[0]) if known and x_scale else np.nan)
        )
    made = old.reshape(-1) / ratio
    changes[bias.use] = bias.value, in_int32(made).reshape(old.shape)
    return Biases(layer=layer, steps=made, step=step), changes


def _of_size(factors: Reals, size: int) -> Reals:
    return factors if factors.size == size else factors[:1]


def in_int32(steps: Reals) -> Elements:
    """Round to what an int32 can hold."""
    limits = np.iinfo(np.int32)
    return np.clip(np.rint(steps), limits.min, limits.max).astype(np.int32)


def set_all(raw: RawFile, changes: Mapping[ConstantReader, Changed], *, again: bool = False) -> None:
    """Change constants, which others still read as they were; ``again`` for those changed before."""
    groups: dict[tuple[ir.Value, bytes], list[ConstantReader]] = {}
    arrays: dict[tuple[ir.Value, bytes], Elements] = {}
    for use, (value, array) in changes.items():
        made = np.asarray(array).astype(array_of(value).dtype)
        key = value, made.tobytes()
        groups.setdefault(key, []).append(use)
        arrays[key] = made
    for (value, content), uses in groups.items():
        if again or content != array_of(value).tobytes():
            raw.change(value, arrays[value, content], uses)

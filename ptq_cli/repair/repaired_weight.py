"""New integers, scales and biases of a stored weight, and the constants of the file that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.graph_reading import input_at
from ptq_cli.repair.raw_file import RawFile
from ptq_cli.repair.safe_weights import Float64s, Int64s, needed_factors, safe_integers
from ptq_cli.repair.weight_sites import BiasUse, Layer, ScaleUse, Use, WeightSite

Changed = tuple[ir.Value, Array]  # a constant, and what it becomes


@dataclass(frozen=True, kw_only=True)
class RepairedWeight:
    """What became of a stored weight.

    Attributes:
        change: the largest change of a weight, in steps of the scale that it had.
        factor: of the scale that grew most.
        from_float: whether it was rounded from the float model's weight.
        integers, scales: what the file has now.
        file_weight, float_weight: what the file had, and what the float model has, in real units.

    Shapes: integers, scales, file_weight, float_weight: flat, as the stored weight.
    """

    site: WeightSite
    change: float
    factor: float
    from_float: bool
    integers: Int64s
    scales: Float64s
    file_weight: Float64s
    float_weight: Array | None
    biases: "tuple[Biases, ...]"


@dataclass(frozen=True, kw_only=True)
class Biases:
    """The int32 bias of a layer in steps of its new scale, not yet rounded.

    Shapes: steps: (O,), or (1,); step: as they are, or one.
    """

    layer: Layer
    steps: Float64s
    step: Float64s


def array_of(value: ir.Value) -> Array:
    """Return the array of a constant."""
    assert value.const_value is not None  # noqa: S101 - only constants are looked at
    return np.asarray(value.const_value.numpy())


def file_steps(site: WeightSite) -> tuple[Array, Float64s, Int64s]:
    """Return a stored weight in steps of its scale, with the scale and the zero point of each element.

    Shapes: each flat, as the stored weight.
    """
    stored = array_of(site.stored).reshape(-1)
    scales = array_of(site.scales[0].value).astype(np.float64).reshape(-1)[site.scales[0].elements]
    zeros = np.zeros(stored.size, np.int64)
    if site.zero_points:
        zeros = array_of(site.zero_points[0].value).astype(np.int64).reshape(-1)[site.zero_points[0].elements]
    if not site.is_float:
        return stored.astype(np.int64) - zeros, scales, zeros
    steps = np.divide(stored, scales, out=np.zeros(stored.size), where=scales > 0)
    return np.clip(steps, -128 - zeros, 127 - zeros), scales, zeros


def repair_weight(raw: RawFile, site: WeightSite, floats: Array | None) -> RepairedWeight:
    """Decide a weight anew, and write it into the message.

    ``floats`` are those of the float model, flat as the stored weight; None to round the file's own.
    """
    own, scales, zeros = file_steps(site)
    now = np.rint(own) + zeros
    steps = own
    if floats is not None:
        exact = np.divide(floats, scales, out=np.zeros(floats.size), where=scales > 0)
        steps = np.clip(exact, -128 - zeros, 127 - zeros)
    rows, places = site.rows(steps)
    per_row = len(places) > 1 and _each_row_has_its_own(site, places, bool(zeros.any()))
    chosen = needed_factors(site.rows(now)[0]) > 1.0
    if not per_row:
        chosen[:] = True
    first = scales[places[:, 0]]
    stored_type = array_of(site.scales[0].value).dtype

    def exact_factor(factors: Float64s) -> Float64s:
        if not per_row:
            return np.full(len(factors), _representable(factors[:1], scales[scales > 0][:1], stored_type)[0])
        return _representable(factors, first, stored_type)

    integers, factors = safe_integers(rows, chosen, exact_factor, per_row=per_row)
    made = now.astype(np.int64)
    made[places[chosen]] = integers[chosen]
    by_element = np.ones(own.size)
    by_element[places[chosen]] = factors[chosen, None]
    moved = np.zeros(own.size, bool)
    moved[places[chosen]] = True
    values = np.where(moved, made * by_element, own)
    biases = _write(raw, site, _Decided(made, moved, by_element, scales))
    return RepairedWeight(
        site=site,
        change=float(np.abs(values - own).max(initial=0.0)),
        factor=float(factors.max(initial=1.0)),
        from_float=floats is not None,
        integers=np.where(moved, made, made - zeros),
        scales=scales * by_element,
        file_weight=own * scales,
        float_weight=floats,
        biases=tuple(biases),
    )


def _representable(factors: Float64s, scales: Float64s, dtype: np.dtype) -> Float64s:
    wide = (scales * factors).astype(dtype)
    low = wide.astype(np.float64) < scales * factors
    wide[low] = np.nextafter(wide[low], np.array(np.inf, dtype)) if dtype.kind == "f" else wide[low]
    return np.divide(wide.astype(np.float64), scales, out=factors.copy(), where=scales > 0)


def _each_row_has_its_own(site: WeightSite, places: Int64s, has_zeros: bool) -> bool:
    """Whether each output channel has scales of its own, that no other shares."""
    for item in (*site.scales, *(site.zero_points if has_zeros else ())):
        of_rows = item.elements[places]
        if (of_rows != of_rows[:, :1]).any() or np.unique(of_rows[:, 0]).size < len(places):
            return False
    for layer in site.layers:
        if layer.bias is not None and not layer.bias.is_float:
            sizes = {array_of(layer.bias.value).size}
            sizes |= {array_of(layer.bias.scale[1]).size} if layer.bias.scale is not None else set()
            if sizes != {len(places)}:
                return False
    return True


@dataclass(frozen=True)
class _Decided:
    """New integers, which elements they are of, and the factor and the old scale of each element."""

    integers: Int64s
    moved: Array
    factors: Float64s
    scales: Float64s

    def of_channels(self, layer: Layer) -> tuple[Float64s, Float64s]:
        """Return factor and old scale of each output channel of a layer."""
        first = layer.places[:, 0]
        return self.factors[first], self.scales[first]


def _write(raw: RawFile, site: WeightSite, decided: _Decided) -> list[Biases]:
    new_scales: dict[Use, Array] = {}
    for item in site.scales:
        new_scales[item.use] = _by_value(item, decided.factors)
    set_all(raw, {item.use: (item.value, new_scales[item.use]) for item in site.scales})
    zero = {
        item.use: (item.value, np.where(_reached(item, decided.moved), 0, array_of(item.value)))
        for item in site.zero_points
        if array_of(item.value).any()
    }
    set_all(raw, zero)
    biases, changes = list[Biases](), dict[Use, Changed]()
    for layer in site.layers:
        if layer.bias is not None and not layer.bias.is_float:
            found, of_bias = _repaired_bias(layer, layer.bias, *decided.of_channels(layer))
            biases.append(found)
            changes |= of_bias
    set_all(raw, changes)
    stored = array_of(site.stored)
    if site.is_float:
        grid = new_scales[site.scales[0].use].reshape(-1)[site.scales[0].elements]
        flat = stored.reshape(-1)
        keeps = np.rint(np.divide(flat, grid, out=np.zeros_like(flat), where=grid > 0)) == decided.integers
        made = np.where(keeps | ~decided.moved, flat, decided.integers * grid)
    else:
        made = decided.integers
    set_all(raw, {use: (site.stored, made.reshape(stored.shape)) for use in site.readers})
    return biases


def _by_value(item: ScaleUse, factors: Float64s) -> Array:
    old = array_of(item.value)
    by_value = np.ones(old.size)
    by_value[item.elements] = factors
    return (old.reshape(-1).astype(np.float64) * by_value).astype(old.dtype).reshape(old.shape)


def _reached(item: ScaleUse, moved: Array) -> Array:
    shape = array_of(item.value).shape
    found = np.zeros(int(np.prod(shape, dtype=np.int64)), bool)
    found[item.elements[moved]] = True
    return found.reshape(shape)


def _repaired_bias(
    layer: Layer, bias: BiasUse, factors: Float64s, scales: Float64s
) -> tuple[Biases, dict[Use, Changed]]:
    """Return a bias in steps of its new scale, and what changes in the file."""
    old = array_of(bias.value)
    ratio, changes = _of_size(factors, old.size), dict[Use, Changed]()
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
        step = scales * ratio * (float(array_of(x_scale).reshape(-1)[0]) if known and x_scale else np.nan)
    made = old.reshape(-1) / ratio
    changes[bias.use] = bias.value, in_int32(made).reshape(old.shape)
    return Biases(layer=layer, steps=made, step=step), changes


def _of_size(factors: Float64s, size: int) -> Float64s:
    return factors if factors.size == size else factors[:1]


def in_int32(steps: Float64s) -> Array:
    """Round to what an int32 can hold."""
    limits = np.iinfo(np.int32)
    return np.clip(np.rint(steps), limits.min, limits.max).astype(np.int32)


def set_all(raw: RawFile, changes: Mapping[Use, Changed]) -> None:
    """Change constants; who reads an old value beside these readers keeps it."""
    groups: dict[tuple[ir.Value, bytes], list[Use]] = {}
    arrays: dict[tuple[ir.Value, bytes], Array] = {}
    for use, (value, array) in changes.items():
        made = np.asarray(array).astype(array_of(value).dtype)
        key = value, made.tobytes()
        groups.setdefault(key, []).append(use)
        arrays[key] = made
    for (value, content), uses in groups.items():
        raw.change(value, arrays[value, content], uses)

"""The factors of channels: a family of one strength for each space, tried on what its layers read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.amax.choice import grid_of_range
from ptq_cli.core.arithmetic import QuantParameters
from ptq_cli.core.formats import BYTE
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.rescaling.scale_spaces import NO_CHANNEL, Factors, HeldChannels, Ids, ScaleSpace
from ptq_cli.plan.sites import ActivationSite, Plan, WeightSite
from ptq_cli.recover.layer_geometry import LayerGeometry, LayerRows, layer_geometry
from ptq_cli.recover.recovery_context import RecoverySamples, samples_in
from ptq_cli.recover.second_moments import Float64s
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

_Float32s = npt.NDArray[np.float32]
_ROWS = 512  # of each layer: enough to tell strengths apart, and few enough to try several


@dataclass(kw_only=True)
class ChannelRange:
    """The lowest and the highest value of each index along an axis of a tensor.

    Shapes: low, high: (C,).
    """

    axis: int
    low: Float64s
    high: Float64s

    def update(self, array: Array) -> None:
        """Take the values of one piece."""
        others = tuple(axis for axis in range(array.ndim) if axis != self.axis)
        if array.size:
            self.low = np.minimum(self.low, array.min(axis=others))
            self.high = np.maximum(self.high, array.max(axis=others))


@dataclass(frozen=True, kw_only=True)
class SpaceReader:
    """A layer in integers that reads channels of spaces.

    Attributes:
        name: of its node.
        site: of its weight.
        activation: of the tensor that it reads.
        geometry: how its weight meets what it reads.
        weight: in the form of its geometry.
        columns: which index of the tensor's axis each input of the weight is, group after group.
        rows: what it reads, on samples that decide.

    Shapes: weight: (M, K); columns: (groups * K,).
    """

    name: str
    site: WeightSite
    activation: ActivationSite
    geometry: LayerGeometry
    weight: _Float32s
    columns: Ids
    rows: LayerRows = field(repr=False)

    def read(self) -> _Float32s:
        """Return the rows that were collected: (rows, groups * K)."""
        parts = [read for read, _ in self.rows.parts()]
        none = np.zeros((0, len(self.columns)), np.float32)
        return np.concatenate(parts).astype(np.float32) if parts else none


@dataclass(frozen=True, kw_only=True)
class SpaceSamples:
    """What the spaces of a model hold.

    Attributes:
        readers: the layers in integers that read channels of spaces, by name.
        ranges: of the quantized tensors that hold channels along one axis, by name.
        sites: of these tensors.
    """

    readers: Mapping[str, SpaceReader]
    ranges: Mapping[str, ChannelRange]
    sites: Mapping[str, ActivationSite]


def sample_spaces(
    model: ir.Model, spaces: Sequence[ScaleSpace], plan: Plan, samples: RecoverySamples, *, threads: int
) -> SpaceSamples:
    """Run samples through a float model: ranges are those of all, rows those of the ones to decide by."""
    nodes = {node.name or "": node for node in model.graph}
    wanted = {item.name for space in spaces for item in space.readers}
    count = sum(samples_in(piece) for piece in samples.decide)
    readers = {
        site.node: reader
        for site in plan.weights
        if site.node in wanted and (reader := _reader(nodes[site.node], site, plan, count)) is not None
    }
    held = {item.name: item for space in spaces for item in space.held if item.name in plan.activations}
    fed = {value.name for value in model.graph.inputs}
    made = {name: nodes[name].outputs[0].name or "" for name in readers}
    names = list(
        dict.fromkeys([*held, *(reader.activation.tensor for reader in readers.values()), *made.values()])
    )
    # What the model is fed is there already; a graph cannot return its own input as a tap.
    taps = [name for name in names if name not in fed]
    ranges: dict[str, ChannelRange] = {}
    if taps:
        session = Session(tap(model, taps), threads=threads)
        first = 0
        for number, piece in enumerate((*samples.decide, *samples.fit)):
            arrays = {**piece, **dict(zip(taps, session.run(piece), strict=True))}
            _update(ranges, held, arrays)
            # Rows only of some pieces, since they are held in memory; ranges of all of them.
            if number < len(samples.decide):
                for name, reader in readers.items():
                    reader.rows.add(number, arrays[reader.activation.tensor], arrays[made[name]], first=first)
                first += samples_in(piece)
    return SpaceSamples(
        readers=readers, ranges=ranges, sites={name: plan.activations[name] for name in ranges}
    )


def _update(
    ranges: dict[str, ChannelRange], held: Mapping[str, HeldChannels], arrays: Mapping[str, Array]
) -> None:
    for name, item in held.items():
        array = arrays[name]
        if name not in ranges:
            none = np.zeros(array.shape[item.axis])
            ranges[name] = ChannelRange(axis=item.axis, low=none, high=none.copy())
        ranges[name].update(array)


def _reader(node: ir.Node, site: WeightSite, plan: Plan, samples: int) -> SpaceReader | None:
    source, value = input_at(node, 0), input_at(node, site.input_index)
    activation = plan.activations.get(source.name or "") if source is not None else None
    if activation is None or value is None or value.shape is None:
        return None
    shape = value.shape.numpy()
    geometry = layer_geometry(node, site, shape)
    if isinstance(geometry, str):
        return None
    with mapped(value) as array:
        weight = geometry.rows(array).astype(np.float32)
    kernel = int(np.prod(shape[2:])) if geometry.window is not None else 1
    inputs = weight.shape[1] * geometry.groups
    return SpaceReader(
        name=node.name or "",
        site=site,
        activation=activation,
        geometry=geometry,
        weight=weight,
        columns=np.repeat(np.arange(inputs // kernel), kernel),
        rows=LayerRows(geometry, wanted=_ROWS, samples=samples),
    )


HIGHEST = np.float32(127.0)
TINY = 1e-30
STRENGTHS = (0.25, 0.5, 0.65, 0.8, 1.0)  # 0 gives all channels the same largest weight, 1 the same range
# A space keeps its channels unless the error falls below this share of what it was; with fewer bits, where
# all noise is of activations, a little less is worth it.
_GAIN, GAIN_OF_FEW = 0.5, 0.9
# Shares of a tensor's range, where it has fewer bits: one that holds every value wastes most of 16 steps.
SHARES_OF_FEW = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)
# Factors in each octave with fewer bits: channels of ordinary networks are less than an octave apart, and
# what these lose there is far above the float model's last bits.
STEPS_OF_FEW = 4


@dataclass(frozen=True, kw_only=True)
class SpaceFactors:
    """The factors that were chosen for a space.

    Attributes:
        space: the space.
        factors: of its channels.
        strength: that was best.
        before, after: error of what its readers make, as a share of what that varies by, without and with.
    """

    space: ScaleSpace
    factors: Factors
    strength: float
    before: float
    after: float


def find_factors(
    spaces: Sequence[ScaleSpace], found: SpaceSamples, bits: int, *, by_row: bool = False
) -> list[SpaceFactors]:
    """Return factors for the spaces that gain from them, in order; each row may have a scale of its own."""
    readers = {name: _Trial(reader, bits, by_row=by_row) for name, reader in found.readers.items()}
    table = {name: np.ones(len(item.low)) for name, item in found.ranges.items()}
    chosen = []
    for space in spaces:
        trial = _SpaceTrial(space, readers, found, table, by_row=by_row)
        best = trial.best()
        if best is not None:
            chosen.append(best)
            trial.keep(best.factors)
    return chosen


class _Trial:
    """A reader whose output's error is measured."""

    def __init__(self, reader: SpaceReader, bits: int, *, by_row: bool) -> None:
        self.reader, self._by_row = reader, by_row
        self._highest = float(2 ** (bits - 1) - 1)
        self._read = reader.read()
        self._product = self._multiply(self._read, reader.weight)
        varied = (
            self._product - self._product.mean(axis=0, keepdims=True) if len(self._product) else self._product
        )
        self._signal = float(np.sum(varied.astype(np.float64) ** 2))

    @property
    def is_measured(self) -> bool:
        return self._signal > 0.0

    def weight_by_channel(self, count: int) -> Factors:
        """Return, of each index of the tensor, its largest weight beside what an output is made of."""
        weight = self._apart(np.abs(self.reader.weight))  # (groups, M / groups, K)
        spread = self._read.std(axis=0).reshape(len(weight), 1, -1) if len(self._read) else np.ones((1, 1, 1))
        size = np.sqrt(np.sum((weight * spread) ** 2, axis=2, keepdims=True))
        share = (weight / np.maximum(size, 1e-30)).max(axis=1).reshape(-1)
        found = np.zeros(count)
        np.maximum.at(found, self.reader.columns, share)
        return found

    def error(self, factors: Factors, low: Factors, high: Factors, noise: Factors) -> float:
        """Return the error of the output, as a share of what it varies by.

        Factors, ranges and ``noise``, the variance that other tensors add, are of each index; the latter two
        without factors.
        """
        scaled = factors[self.reader.columns].astype(np.float32)
        weight = self._rounded(
            self._apart(self.reader.weight) / scaled.reshape(self.reader.geometry.groups, 1, -1)
        ).reshape(self.reader.weight.shape)
        reads = self._roundings(
            self._read * scaled, float((low * factors).min()), float((high * factors).max())
        )
        missed = [self._multiply(read, weight) - self._product for read in reads]
        power = (self._apart(self.reader.weight).astype(np.float64) ** 2).sum(axis=1).reshape(-1)
        added = len(self._product) * float(np.sum(power * noise[self.reader.columns]))
        return (min(float(np.sum(item.astype(np.float64) ** 2)) for item in missed) + added) / self._signal

    def _roundings(self, read: _Float32s, low: float, high: float) -> Iterator[_Float32s]:
        """Yield what is read as the quantized model may round it, of which the best counts."""
        site = self.reader.activation
        if self._by_row:
            yield _on_own_scales(read)
            return
        for share in SHARES_OF_FEW if site.format.bits < BYTE else (1.0,):
            yield _on_grid(read, _grid(site, low, high, share))

    def _rounded(self, weight: _Float32s) -> _Float32s:
        axes = (0, 1, 2) if self.reader.site.axis is None else 2
        scale = np.maximum(np.abs(weight).max(axis=axes, keepdims=True) / self._highest, 1e-30)
        return np.asarray(np.rint(weight / scale) * scale, np.float32)

    def _apart(self, weight: _Float32s) -> _Float32s:
        return weight.reshape(self.reader.geometry.groups, -1, weight.shape[1])

    def _multiply(self, read: _Float32s, weight: _Float32s) -> _Float32s:
        apart = self._apart(weight)
        columns = read.reshape(len(read), len(apart), -1).transpose(1, 0, 2)
        product = np.matmul(columns, apart.transpose(0, 2, 1)).transpose(1, 0, 2)
        return np.asarray(product.reshape(len(read), -1), np.float32)


class _SpaceTrial:
    """One space, whose strengths are tried."""

    def __init__(
        self,
        space: ScaleSpace,
        readers: Mapping[str, _Trial],
        found: SpaceSamples,
        table: Mapping[str, Factors],
        *,
        by_row: bool,
    ) -> None:
        self._space, self._found, self._table, self._by_row = space, found, table, by_row
        self._held = [item for item in space.held if item.name in found.ranges]
        names = {item.name for item in self._held}
        self._has_few_bits = any(found.sites[name].format.bits < BYTE for name in names)
        self._trials = [
            trial
            for item in space.readers
            if (trial := readers.get(item.name)) is not None
            and trial.is_measured
            and trial.reader.activation.tensor in names
        ]

    def best(self) -> SpaceFactors | None:
        """Return the best factors, or None where they gain too little."""
        if not self._trials:
            return None
        ones = np.ones(len(self._space.roots))
        before = self._error(ones)
        tried = [(self._factors(strength), strength) for strength in STRENGTHS]
        errors = [self._error(factors) for factors, _ in tried]
        index = int(np.argmin(errors))
        if not errors[index] < (GAIN_OF_FEW if self._has_few_bits else _GAIN) * before:
            return None
        factors, strength = tried[index]
        return SpaceFactors(
            space=self._space, factors=factors, strength=strength, before=before, after=errors[index]
        )

    def keep(self, factors: Factors) -> None:
        """Let the spaces that follow see these factors."""
        for item in self._held:
            self._table[item.name][:] = self._at(item, factors)

    def _at(self, item: HeldChannels, factors: Factors) -> Factors:
        """Return the factor of each index of a tensor."""
        own = item.channels != NO_CHANNEL
        return np.where(own, factors[item.channels], self._table[item.name])

    def _error(self, factors: Factors) -> float:
        # Of few bits the noise of whole ranges would hide what the readers' own best ranges gain.
        noise = {} if self._has_few_bits else self._noise(factors)
        total = 0.0
        for trial in self._trials:
            tensor = trial.reader.activation.tensor
            item = next(item for item in self._held if item.name == tensor)
            found = self._found.ranges[tensor]
            own = self._found.sites[tensor].source
            others = sum((part for source, part in noise.items() if source != own), np.zeros(len(factors)))
            added = np.where(item.channels != NO_CHANNEL, others[item.channels], 0.0)
            total += trial.error(self._at(item, factors), found.low, found.high, added)
        return total

    def _noise(self, factors: Factors) -> dict[str, Factors]:
        """Rounding noise of each channel, before its factor, by the source of the grid."""
        noise: dict[str, Factors] = {}
        # Where rows get their scales at each run, nothing between layers is rounded.
        for item in self._held if not self._by_row else ():
            found, site, at = (
                self._found.ranges[item.name],
                self._found.sites[item.name],
                self._at(item, factors),
            )
            if site.source in noise:
                continue
            grid = _grid(site, float((found.low * at).min()), float((found.high * at).max()))
            own = np.unique(item.channels[item.channels != NO_CHANNEL])
            noise[site.source] = np.zeros(len(factors))
            noise[site.source][own] = float(grid.scale) ** 2 / 12.0 / factors[own] ** 2
        return noise

    def _factors(self, strength: float) -> Factors:
        count = len(self._space.roots)
        reach, weight = np.zeros(count), np.zeros(count)
        for trial in self._trials:
            item = next(item for item in self._held if item.name == trial.reader.activation.tensor)
            found = self._found.ranges[item.name]
            own = item.channels != NO_CHANNEL
            if not self._has_few_bits:
                np.maximum.at(reach, item.channels[own], np.maximum(-found.low, found.high)[own])
            by_index = trial.weight_by_channel(len(found.low))
            np.maximum.at(weight, item.channels[own], by_index[own])
        if self._has_few_bits:
            reach = self._mean_reach(count)
        alive = (reach > 0.0) & (weight > 0.0)
        if not alive.any():
            return np.ones(count)
        factors = weight[alive] ** (1.0 - strength) / reach[alive] ** strength
        factors *= reach[alive].max() / (factors * reach[alive]).max()
        # Powers of two, of 8 bits: products and sums of the float model keep every bit.
        finer = STEPS_OF_FEW if self._has_few_bits else 1
        steps = np.rint(np.log2(factors) * finer) / finer
        result = np.full(count, 2.0 ** steps.min())  # What was always 0 is made no larger than the others.
        result[alive] = 2.0**steps
        return result

    def _mean_reach(self, count: int) -> Factors:
        """Reach of each channel, as a geometric mean over the tensors of the space."""
        # Those that are only added count, too: with few bits an Add loses as much as what a layer reads.
        reach, tensors = np.zeros(count), np.zeros(count)
        for item in self._held:
            found, own = self._found.ranges[item.name], item.channels != NO_CHANNEL
            far = np.maximum(-found.low, found.high)
            np.add.at(reach, item.channels[own], np.log(np.maximum(far / max(far.max(), TINY), TINY))[own])
            np.add.at(tensors, item.channels[own], 1.0)
        return np.where(tensors > 0.0, np.exp(reach / np.maximum(tensors, 1.0)), 0.0)


def _on_grid(values: _Float32s, grid: QuantParameters) -> _Float32s:
    scale, zero = np.float32(grid.scale), np.float32(int(grid.zero_point))
    steps = np.rint(values / scale) + zero
    return np.asarray((np.clip(steps, grid.format.qmin, grid.format.qmax) - zero) * scale, np.float32)


def _on_own_scales(values: _Float32s) -> _Float32s:
    """Round rows as the dynamic form does, each with the scale of its largest value; 0 stays 0."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True, initial=0.0) / HIGHEST, TINY)
    return np.asarray(np.rint(values / scale) * scale, np.float32)


def _grid(site: ActivationSite, low: float, high: float, share: float = 1.0) -> QuantParameters:
    return grid_of_range(share * low, share * high, site.format, symmetric=site.symmetric)

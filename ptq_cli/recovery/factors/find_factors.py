"""The factors of channels: a family of one strength for each space, tried on what its layers read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptq_cli.core.numbers.arithmetic import QuantParameters
from ptq_cli.models.rescaling.channel_ids import Factors
from ptq_cli.models.rescaling.scale_spaces import NO_CHANNEL, HeldChannels, ScaleSpace
from ptq_cli.recovery.factors.plain_quantization import activation_grid
from ptq_cli.recovery.factors.space_samples import Float32s, SpaceReader, SpaceSamples

STRENGTHS = (0.25, 0.5, 0.65, 0.8, 1.0)
"""0 gives all channels the same largest weight, 1 the same range."""
GAIN = 0.5
"""A space keeps its channels unless the error falls below this share of what it was."""


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


def find_factors(spaces: Sequence[ScaleSpace], found: SpaceSamples, bits: int) -> list[SpaceFactors]:
    """Return factors for the spaces that gain from them, in order.

    Args:
        spaces: of the model.
        found: what they hold.
        bits: of the weights.
    """
    readers = {name: _Trial(reader, bits) for name, reader in found.readers.items()}
    table = {name: np.ones(len(item.low)) for name, item in found.ranges.items()}
    chosen = []
    for space in spaces:
        trial = _SpaceTrial(space, readers, found, table)
        best = trial.best()
        if best is not None:
            chosen.append(best)
            trial.keep(best.factors)
    return chosen


class _Trial:
    """A reader whose output's error is measured."""

    def __init__(self, reader: SpaceReader, bits: int) -> None:
        self.reader = reader
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
        """Return, of each index of the tensor, its largest weight beside what an output is made of.

        Shapes:
            (count,).
        """
        weight = self._apart(np.abs(self.reader.weight))  # (groups, M / groups, K)
        spread = self._read.std(axis=0).reshape(len(weight), 1, -1) if len(self._read) else np.ones((1, 1, 1))
        size = np.sqrt(np.sum((weight * spread) ** 2, axis=2, keepdims=True))
        share = (weight / np.maximum(size, 1e-30)).max(axis=1).reshape(-1)
        found = np.zeros(count)
        np.maximum.at(found, self.reader.columns, share)
        return found

    def error(self, factors: Factors, low: Factors, high: Factors, noise: Factors) -> float:
        """Return the error of the output, as a share of what it varies by.

        Args:
            factors: of each index of the tensor.
            low: of each index, without factors.
            high: alike.
            noise: variance of what other tensors add to each index, without factors.
        """
        scaled = factors[self.reader.columns].astype(np.float32)
        grid = activation_grid(
            self.reader.activation, float((low * factors).min()), float((high * factors).max())
        )
        read = _on_grid(self._read * scaled, grid)
        weight = self._rounded(
            self._apart(self.reader.weight) / scaled.reshape(self.reader.geometry.groups, 1, -1)
        )
        difference = self._multiply(read, weight.reshape(self.reader.weight.shape)) - self._product
        power = (self._apart(self.reader.weight).astype(np.float64) ** 2).sum(axis=1).reshape(-1)
        added = len(self._product) * float(np.sum(power * noise[self.reader.columns]))
        return (float(np.sum(difference.astype(np.float64) ** 2)) + added) / self._signal

    def _rounded(self, weight: Float32s) -> Float32s:
        axes = (0, 1, 2) if self.reader.site.axis is None else 2
        scale = np.maximum(np.abs(weight).max(axis=axes, keepdims=True) / self._highest, 1e-30)
        return np.asarray(np.rint(weight / scale) * scale, np.float32)

    def _apart(self, weight: Float32s) -> Float32s:
        return weight.reshape(self.reader.geometry.groups, -1, weight.shape[1])

    def _multiply(self, read: Float32s, weight: Float32s) -> Float32s:
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
    ) -> None:
        self._space, self._found, self._table = space, found, table
        self._held = [item for item in space.held if item.name in found.ranges]
        names = {item.name for item in self._held}
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
        if not errors[index] < GAIN * before:
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
        noise = self._noise(factors)
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
        """Return what rounding adds to each channel, before it got its factor, by the source of the grid."""
        noise = {}
        for item in self._held:
            found, site, at = (
                self._found.ranges[item.name],
                self._found.sites[item.name],
                self._at(item, factors),
            )
            if site.source in noise:
                continue
            grid = activation_grid(site, float((found.low * at).min()), float((found.high * at).max()))
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
            np.maximum.at(reach, item.channels[own], np.maximum(-found.low, found.high)[own])
            by_index = trial.weight_by_channel(len(found.low))
            np.maximum.at(weight, item.channels[own], by_index[own])
        alive = (reach > 0.0) & (weight > 0.0)
        if not alive.any():
            return np.ones(count)
        factors = weight[alive] ** (1.0 - strength) / reach[alive] ** strength
        factors *= reach[alive].max() / (factors * reach[alive]).max()
        # Powers of two: products and sums of the float model keep every bit.
        steps = np.rint(np.log2(factors))
        result = np.full(count, 2.0 ** steps.min())  # What was always 0 is made no larger than the others.
        result[alive] = 2.0**steps
        return result


def _on_grid(values: Float32s, grid: QuantParameters) -> Float32s:
    scale, zero = np.float32(grid.scale), np.float32(int(grid.zero_point))
    steps = np.rint(values / scale) + zero
    return np.asarray((np.clip(steps, grid.format.qmin, grid.format.qmax) - zero) * scale, np.float32)

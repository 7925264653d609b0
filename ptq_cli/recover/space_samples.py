"""Channel ranges and layer inputs of the float model, per group of rescalable channels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.mapped_constants import mapped
from ptq_cli.models.graph_reading import input_at
from ptq_cli.models.rescaling.channel_ids import Ids
from ptq_cli.models.rescaling.scale_spaces import HeldChannels, ScaleSpace
from ptq_cli.plan.sites import ActivationSite, Plan, WeightSite
from ptq_cli.recover.layer_geometry import LayerGeometry, layer_geometry
from ptq_cli.recover.layer_rows import LayerRows
from ptq_cli.recover.recovery_data import RecoverySamples, samples_in
from ptq_cli.recover.second_moments import Float64s
from ptq_cli.runtime.session import Session
from ptq_cli.runtime.tapping.taps import tap

Float32s = npt.NDArray[np.float32]
ROWS = 512  # of each layer: enough to tell strengths apart, and few enough to try several


@dataclass(kw_only=True)
class ChannelRange:
    """The lowest and the highest value of each index along an axis of a tensor.

    Shapes:
        low, high: (C,).
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

    Shapes:
        weight: (M, K); columns: (groups * K,).
    """

    name: str
    site: WeightSite
    activation: ActivationSite
    geometry: LayerGeometry
    weight: Float32s
    columns: Ids
    rows: LayerRows = field(repr=False)

    def read(self) -> Float32s:
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
    model: ir.Model,
    spaces: Sequence[ScaleSpace],
    plan: Plan,
    samples: RecoverySamples,
    *,
    threads: int,
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
        rows=LayerRows(geometry, wanted=ROWS, samples=samples),
    )

"""BatchOutputs on samples before and after a repair, and biases for what new integers add on average."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array, is_array
from ptq_cli.evaluation.metrics.value_errors import Sqnr
from ptq_cli.models.files.stored import StoredModel
from ptq_cli.models.graph_reading import input_at
from ptq_cli.qdq.proof.portable_sums import CONVOLUTIONS
from ptq_cli.repair.float_weights import FloatWeights
from ptq_cli.repair.raw_file import ConstantReader, RawFile
from ptq_cli.repair.repaired_weight import Changed, RepairedWeight, array_of, in_int32, set_all
from ptq_cli.repair.safe_weights import Elements, Reals
from ptq_cli.repair.weight_sites import BiasUse, Layer
from ptq_cli.runtime.session import DEFAULT_KERNELS, Kernels, Session
from ptq_cli.runtime.timing import Inputs

BatchOutputs = list[dict[str, Array]]  # of each batch
_INTEGERS = ("QGemm", "QLinearConv")  # read activations as integers, beside their scale and zero point
_FACTORS = ("alpha", "beta")


def outputs_of(
    model: StoredModel, batches: Sequence[Inputs], threads: int, kernels: Kernels = DEFAULT_KERNELS
) -> BatchOutputs:
    """Run a model on batches."""
    session = Session(model, threads=threads, kernels=kernels)
    return [dict(zip(session.outputs, session.run(batch), strict=True)) for batch in batches]


def worst_sqnr(exact: BatchOutputs, found: BatchOutputs) -> float:
    """SQNR of the output that is worst, in dB; NaN if no output holds floats in both."""
    metrics: dict[str, Sqnr] = {}
    for one, other in zip(exact, found, strict=True):
        for name in one.keys() & other.keys():
            pair = one[name], other[name]
            if (
                all(is_array(item) and item.dtype.kind == "f" for item in pair)
                and pair[0].shape == pair[1].shape
            ):
                metrics.setdefault(name, Sqnr()).update(*map(np.atleast_1d, pair))
    return min((metric.compute() for metric in metrics.values()), default=math.nan)


@dataclass(frozen=True, kw_only=True)
class _Corrected:
    """A layer whose bias can be corrected.

    Attributes:
        read: the name of what it reads.
        axis: of the channels of that.
        steps: the bias, without rounding; of a float bias in real units.
        step: what one of them is.
    """

    weight: RepairedWeight
    layer: Layer
    bias: BiasUse
    read: str
    axis: int
    steps: Reals
    step: Reals | float


def correct_biases(
    raw: RawFile, floats: FloatWeights | None, means: "Means"
) -> dict[ConstantReader, Changed]:
    """Take what the new integers add to each channel on average out of its bias; return what they were.

    Activations are those of the repaired file, whose sums are exact on every processor. A bias that its tool
    has corrected for its own rounding stays so: what counts is then the change from the file's weights.
    """
    changes, before = dict[ConstantReader, Changed](), dict[ConstantReader, Changed]()
    for item in means.layers:
        mean = means.of(item)
        if mean is None:
            continue
        is_original = floats is not None and floats.has(item.steps * item.step, item.step)
        added = _added(item, mean, from_floats=is_original)
        if added is None:
            continue
        for kept, steps in ((changes, item.steps - added / item.step), (before, item.steps)):
            made_value = steps if item.bias.is_float else in_int32(steps)
            kept[item.bias.use] = item.bias.value, made_value.reshape(array_of(item.bias.value).shape)
    set_all(raw, changes, again=True)
    return before


def _added(item: _Corrected, mean: Reals, *, from_floats: bool) -> Reals | None:
    """Return what the new integers add to each output channel, in real units; None if sizes do not fit."""
    difference = item.layer.rows_of(item.weight.difference(from_floats=from_floats))
    rows, size = difference.shape
    summed = difference.reshape(rows, size // item.layer.filter_size, -1).sum(axis=2)
    groups = mean.size // summed.shape[1] if summed.shape[1] else 0
    if item.steps.size != rows or groups < 1 or rows % groups or mean.size != groups * summed.shape[1]:
        return None
    by_group = summed.reshape(groups, rows // groups, -1)
    found: Reals = np.einsum("grc,gc->gr", by_group, mean.reshape(groups, -1)).reshape(-1)
    return found


class Means:
    """Means of the channels that layers read."""

    def __init__(self, raw: RawFile, made: Sequence[RepairedWeight]) -> None:
        self.layers = list(_correctable(raw, made))
        self._sums: dict[tuple[str, int], Reals] = {}
        self._count: dict[tuple[str, int], int] = {}

    def measure(
        self, stored: StoredModel, batches: Sequence[Inputs], threads: int, progress: ProgressCallback
    ) -> None:
        """Run the repaired file, and add up what its layers read."""
        message = onnx.load_model_from_string(stored.content)
        names = {item.read for item in self.layers}
        given = {item.name for item in (*message.graph.output, *message.graph.input)}
        message.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names - given))
        session = Session(replace(stored, content=message.SerializeToString()), threads=threads)
        asked = sorted(names & set(session.outputs))
        for number, batch in enumerate(batches):
            progress(Progress("averaging activations", number, len(batches)))
            # No names would mean all outputs.
            found = dict(zip(asked, session.run(batch, asked), strict=True)) if asked else {}
            found |= {name: batch[name] for name in names & batch.keys()}
            for key in dict.fromkeys((item.read, item.axis) for item in self.layers):
                self._add(key, found.get(key[0]))

    def _add(self, key: tuple[str, int], array: Elements | None) -> None:
        if array is None or not array.size:
            return
        other = tuple(index for index in range(array.ndim) if index != key[1] % array.ndim)
        self._sums[key] = self._sums.get(key, np.zeros(1)) + array.sum(axis=other, dtype=np.float64)
        self._count[key] = self._count.get(key, 0) + array.size // array.shape[key[1]]

    def of(self, item: _Corrected) -> Reals | None:
        """Return the means of what a layer reads, in real units; None if it was not measured."""
        key = item.read, item.axis
        if key not in self._sums:
            return None
        mean = self._sums[key] / self._count[key]
        if item.layer.node.op_type not in _INTEGERS:
            return mean
        scale, zero = (input_at(item.layer.node, index) for index in (1, 2))
        if scale is None or scale.const_value is None or zero is None or zero.const_value is None:
            return None
        real: Reals = (mean - array_of(zero).astype(np.float64)) * array_of(scale).astype(np.float64)
        return real


def _correctable(raw: RawFile, made: Sequence[RepairedWeight]) -> Iterator[_Corrected]:
    for weight in made:
        known = {id(item.layer): item for item in weight.biases}
        for layer in weight.site.layers:
            node, bias = layer.node, layer.bias
            read = raw.input_name(node, 0)
            plain = node.attributes.get_int("transA", 0) == 0 and all(
                node.attributes.get_float(name, 1.0) == 1.0 for name in _FACTORS
            )
            if bias is None or not read or not plain:
                continue
            step: Reals | float
            if bias.is_float:
                steps, step = array_of(bias.value).reshape(-1).astype(np.float64), 1.0
            else:
                steps, step = known[id(layer)].steps, known[id(layer)].step
            axis = 1 if node.op_type in CONVOLUTIONS else -1
            yield _Corrected(
                weight=weight, layer=layer, bias=bias, read=read, axis=axis, steps=steps, step=step
            )

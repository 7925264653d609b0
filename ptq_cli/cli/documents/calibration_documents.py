"""What ``calibrate``, ``merge``, ``calibration show`` and ``explain`` print with ``--json``."""

from typing import TypedDict

from ptq_cli.core.json_schema import described_with


class NonFiniteDocument(TypedDict):
    """How many values were not finite; the range leaves them out.

    Attributes:
        nan: how many were NaN.
        positive_infinities: how many were +Inf.
        negative_infinities: how many were -Inf.
    """

    nan: int
    positive_infinities: int
    negative_infinities: int


class RescalingDocument(TypedDict):
    """What a rung did that moves scales between channels before the calibration.

    Attributes:
        rung: name of the rung.
        kept: whether the model was changed; otherwise it did not help on the held-out samples.
        groups: how many groups of channels were changed.
        possible: how many could be.
        sqnr_db: SQNR of the output before and after, in dB; null if it is not finite.
        samples: how many samples were learned from.
        decided_by: how many were held out.
        difference: the largest change of the float model's output, as a share of its largest output.
        strengths: of smoothing: how many groups have which strength.
        reason: why nothing was changed; empty if something was.
    """

    rung: str
    kept: bool
    groups: int
    possible: int
    sqnr_db: list[float | None]
    samples: int
    decided_by: int
    difference: float
    strengths: dict[str, int]
    reason: str


class CalibrationDocument(TypedDict):
    """What ``ptq calibrate`` measured.

    Attributes:
        run: the run directory.
        calibration: the file with the statistics.
        method: which statistics were kept: ``max`` or ``histogram``.
        samples: how many samples were run.
        tensors: how many tensors were measured.
        parity: largest difference between the ONNX model and its source, as a share of the largest output;
            null if they were not compared.
        notes: what a user should know.
        dead: tensors that were 0 in every sample.
        faint: tensors so small that all of them quantizes to 0.
        shards: which part of the data this is, such as ``shard 2 of 8``; null for all of it.
        nonfinite: tensors that held NaN or infinities.
        channels: tensors whose channels were measured, with the number of channels.
        rescaled: what rungs before the calibration did.
    """

    run: str
    calibration: str
    method: str
    samples: int
    tensors: int
    parity: float | None
    notes: list[str]
    dead: list[str]
    faint: list[str]
    shards: str | None
    nonfinite: dict[str, NonFiniteDocument]
    channels: dict[str, int]
    rescaled: list[RescalingDocument]


class MomentsDocument(TypedDict):
    """What ``ptq calibrate --moments`` collected.

    Attributes:
        run: the run directory.
        moments: the file with the moments.
        samples: how many samples were run.
        tensors: of how many tensors there are moments.
        shards: which part of the data this is; null for all of it.
        without_moments: layers that have none, with the reason.
    """

    run: str
    moments: str
    samples: int
    tensors: int
    shards: str | None
    without_moments: dict[str, str]


class MergeDocument(TypedDict):
    """What ``ptq merge`` made of calibrations.

    Attributes:
        run: the run directory.
        calibration: the file with the statistics.
        runs: how many runs were merged.
        method: which statistics they have; ``moments`` if it was moments that were merged.
        samples: how many samples they saw.
        tensors: how many tensors they measured.
        shards: which shards the result has; null if it has all.
        missing: which shards it does not have; null if it has all.
    """

    run: str
    calibration: str
    runs: int
    method: str
    samples: int
    tensors: int
    shards: str | None
    missing: str | None


class MethodDocument(TypedDict):
    """What an amax method makes of a tensor.

    Attributes:
        amax: the larger end of the range, as a magnitude.
        low, high: the ends of the range.
        candidates: how many ranges the method could choose from; null if it computes one.
        scale: the scale that follows.
        zero_point: the zero point that follows.
        clipped_at_least, clipped_at_most: how many values lie outside the range; null without a histogram.
        mse: expected mean squared error; null without a histogram.
        mse_by_clipping: the part of it that comes from clipping.
        sqnr_db: expected SQNR in dB; null if it is not finite, and without a histogram.
    """

    amax: float
    low: float
    high: float
    candidates: int | None
    scale: float
    zero_point: int
    clipped_at_least: int | None
    clipped_at_most: int | None
    mse: float | None
    mse_by_clipping: float | None
    sqnr_db: float | None


@described_with(NonFiniteDocument)
class TensorDocument(NonFiniteDocument):
    """What was measured of a tensor.

    Attributes:
        name: name of the tensor.
        format: the integer format that it becomes, such as ``uint8``.
        symmetric: whether its range is symmetric.
        count: how many values were seen.
        zeros: how many of them were 0; null without a histogram.
        min, max: the smallest and the largest finite value.
        dead: whether it was 0 in every sample.
        chosen: the amax method that ``ptq export`` uses.
        percentile: the percentile that the settings have for it.
        methods: what each method makes of it; those that lack a statistic are left out.
    """

    name: str
    format: str
    symmetric: bool
    count: int
    zeros: int | None
    min: float
    max: float
    dead: bool
    chosen: str
    percentile: float
    methods: dict[str, MethodDocument]


class ChannelsDocument(TypedDict):
    """What was measured of a tensor's channels; each list has one entry per channel.

    Attributes:
        axis: the axis of the channels.
        size: how many channels there are.
        imbalance: the largest magnitude of a channel, or amax if a method chose them, divided by the
            median; null if there is no median.
        dead: the channels that were 0 in every sample.
        without_finite_value: the channels that had no finite value.
        count: how many values each channel had.
        zeros: how many of them were 0; null without histograms.
        min, max: the smallest and the largest value; null for a channel that had none.
    """

    axis: int
    size: int
    imbalance: float | None
    dead: list[int]
    without_finite_value: list[int]
    count: list[int]
    zeros: list[int] | None
    min: list[float | None]
    max: list[float | None]


@described_with(TensorDocument)
class MeasuredTensorDocument(TensorDocument):
    """What was measured of a tensor, and of its channels.

    Attributes:
        channels: what was measured of its channels; null if they were not.
    """

    channels: ChannelsDocument | None


class CalibrationShowDocument(TypedDict):
    """What ``ptq calibration show`` prints.

    Attributes:
        run: the run directory.
        method: which statistics were kept.
        samples: how many samples were run.
        target: the target whose formats are shown.
        missing: methods that need statistics which were not kept.
        tensors: each measured tensor, in the order that was asked for.
    """

    run: str
    method: str
    samples: int
    target: str
    missing: list[str]
    tensors: list[MeasuredTensorDocument]


@described_with(ChannelsDocument)
class DecidedChannelsDocument(ChannelsDocument):
    """What a method chooses for a tensor's channels; each list has one entry per channel.

    Attributes:
        method: the amax method.
        amax: the larger end of each range, as a magnitude.
        low, high: the ends of each range.
        scale: the scales that follow.
        zero_point: the zero points that follow.
    """

    method: str
    amax: list[float]
    low: list[float]
    high: list[float]
    scale: list[float]
    zero_point: list[int]


class NodeDocument(TypedDict):
    """A layer that computes or reads a tensor.

    Attributes:
        name: name of the node.
        op: its operator.
        integer: whether it computes in integers.
        reason: why it stays in float; empty if it does not.
    """

    name: str
    op: str
    integer: bool
    reason: str


@described_with(TensorDocument)
class ExplanationDocument(TensorDocument):
    """What ``ptq explain`` prints of a tensor.

    Attributes:
        channels: what the chosen method makes of its channels; null if they were not measured.
        run: the run directory.
        dtype: its type in the float model.
        shape: one entry per axis; null where any size is allowed.
        producer: the layer that computes it; null for an input.
        readers: the layers that read it.
        is_output: whether it is an output of the model.
        shared_by: tensors that share its parameters.
        missing: methods that need statistics which were not kept.
        plot: the file of the picture; null if none was asked for.
    """

    channels: DecidedChannelsDocument | None
    run: str
    dtype: str
    shape: list[int | None]
    producer: NodeDocument | None
    readers: list[NodeDocument]
    is_output: bool
    shared_by: list[str]
    missing: list[str]
    plot: str | None

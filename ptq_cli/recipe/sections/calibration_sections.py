"""``[calibration]`` and ``[amax]``: what is measured, and how ranges are decided from it."""

from dataclasses import dataclass, field

from ptq_cli.recipe.sections.field_kinds import LOCATION, Location


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """``[calibration]``: which data run through the model, and which statistics are collected.

    Attributes:
        data: an npz file or a folder of them, an npy file, a folder of images, tar shards, Parquet files,
            texts with a ``tokenizer``, or ``file.py:callable`` that yields batches.
        method: the statistics to collect: ``"histogram"`` or ``"max"``.
        batch_size: samples per batch; it does not change the result.
        samples: number of samples to use, from the first on; all if it is not set.
        set_aside: share of the samples, 0 to 0.9, that is not calibrated on, so that ``ptq tune`` can decide
            by it. They are spread evenly, in an order that looks random and is always the same.
        checkpoint_every: seconds between checkpoints, from which an interrupted calibration continues; 0
            writes one after each batch. They are farther apart if writing them would take over 1 % of the
            time.
        activation_axis: tensors whose statistics are also collected per channel, with the axis of the
            channels: 1 for the output of a convolution, -1 for the output of a MatMul. Names of tensors or of
            the layers that compute them, with ``*``, ``?`` and ``[…]`` as in a shell; a name overrides a
            pattern.
        allow_nonfinite: whether to count NaN and infinities in data and activations, and to decide ranges
            from the finite values, instead of stopping with an error.
    """

    data: Location | None = field(default=None, metadata=LOCATION)
    method: str = "histogram"
    batch_size: int = 32
    samples: int | None = None
    set_aside: float = 0.0
    checkpoint_every: float = 30.0
    activation_axis: dict[str, int] = field(default_factory=dict)
    allow_nonfinite: bool = False


@dataclass(frozen=True, kw_only=True)
class AmaxSettings:
    """``[amax]``: how ranges are decided from the statistics.

    Attributes:
        method: method for activations: ``"max"``, ``"percentile"``, ``"entropy"``, ``"mse"``, or
            ``"auto"``, which is percentile if the calibration collected histograms, and max otherwise.
        percentile: percentage of the values that the range holds; for ``"percentile"``.
        weight_method: method for weights, which uses the weights themselves: ``"max"``, ``"percentile"``,
            ``"entropy"`` or ``"mse"``.
        bins: number of bins of the linear histogram that ``"entropy"`` and ``"mse"`` search; a calibration
            has enough detail for 2048.
        start_bin: number of bins in the smallest range that is tried; if not set, 128 for ``"entropy"`` and
            1 for ``"mse"``.
        stride: number of bins added from one tried range to the next.
    """

    method: str = "auto"
    percentile: float = 99.999
    weight_method: str = "max"
    bins: int = 2048
    start_bin: int | None = None
    stride: int = 1

"""Every setting of ptq, with its default.

A section of the recipe is a dataclass here, a key is a field. ``decode`` reads the types; nothing else has
to change when a setting is added. A field marked as a location holds a path or a ``file.py:callable``
that is resolved against the folder of the file that named it.
"""

from dataclasses import dataclass, field

from ptq_cli.recipe.metric import ENTRY_POINTS, MetricSettings

Location = str
"""A resolved path, or ``file.py:callable`` with a resolved file, or ``package.module:callable``."""


Limit = float | str
"""A number in the metric's unit, or a percentage such as ``"1%"``."""

LOCATION = {"location": True}
FILE_OR_NAME = {"location": True, "or_name": True}
"""A file, or a name that ptq knows, which is no path."""


@dataclass(frozen=True)
class ModelSettings:
    """``[model]``: which model, and how to build it.

    Attributes:
        path: the model's file; the command line's argument overrides it.
        arch: ``file.py:callable`` that builds the module that a state dict belongs to.
        trust_pickle: unpickle a whole module, which can run any code that the file holds.
        input_shape: shape of each input by its name, batch first, where no data tells it.
    """

    path: Location | None = field(default=None, metadata=LOCATION)
    arch: Location | None = field(default=None, metadata=LOCATION)
    trust_pickle: bool = False
    input_shape: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """``[image]``: how an image file becomes an array; the steps run in the order of the fields.

    Attributes:
        mode: ``"RGB"``, ``"BGR"`` or ``"L"`` (grey, one channel).
        resize: [height, width], or [n] for the shorter side; bilinear. Empty: as it is.
        crop: [height, width] from the centre. Empty: none.
        scale: factor on the 0…255 values, before mean and std.
        mean: subtracted, one value a channel or one for all.
        std: divided by, likewise.
        layout: ``"NCHW"`` or ``"NHWC"``.
    """

    mode: str = "RGB"
    resize: list[int] = field(default_factory=list)
    crop: list[int] = field(default_factory=list)
    scale: float = 1 / 255
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[float] = field(default_factory=lambda: [1.0])
    layout: str = "NCHW"


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """``[calibration]``: what is run through the model, and what is kept of it.

    Attributes:
        data: an npz, an npy, an image folder, tar shards, Parquet files, or ``file.py:callable`` that yields
            batches.
        method: the collector, ``"histogram"`` or ``"max"``.
        batch_size: samples a batch; it does not change the result.
        samples: use only the first so many; all if there is no number.
        checkpoint_every: seconds between checkpoints, from which a calibration that was killed continues;
            0 for one after each batch. They lie farther apart where writing would take over 1 % of the time.
        activation_axis: tensors of which each channel's statistics are kept besides, with the axis: 1 behind
            a convolution, -1 behind a MatMul. Names of tensors or of the layers that compute them, with
            ``*``, ``?`` and ``[…]`` as in a shell; a name counts more than a pattern.
        allow_nonfinite: count NaN and infinities of the data and the activations, and decide ranges from the
            finite values, rather than refuse them.
    """

    data: Location | None = field(default=None, metadata=LOCATION)
    method: str = "histogram"
    batch_size: int = 32
    samples: int | None = None
    checkpoint_every: float = 30.0
    activation_axis: dict[str, int] = field(default_factory=dict)
    allow_nonfinite: bool = False


@dataclass(frozen=True, kw_only=True)
class AmaxSettings:
    """``[amax]``: how a range is decided from the statistics.

    Attributes:
        method: of activations: ``"max"``, ``"percentile"``, ``"entropy"``, ``"mse"``, or ``"auto"``:
            percentile where the calibration kept histograms, max where it did not.
        percentile: share of the values, in percent, that the range holds; for ``"percentile"``.
        weight_method: of weights, from their own values: ``"max"``, ``"percentile"``, ``"entropy"`` or
            ``"mse"``.
        bins: of the linear histogram that ``"entropy"`` and ``"mse"`` search; calibrations keep enough for
            2048.
        start_bin: how many bins the smallest range holds that they try; without a number 128 for
            ``"entropy"`` and 1 for ``"mse"``.
        stride: how many bins more each following range holds.
    """

    method: str = "auto"
    percentile: float = 99.999
    weight_method: str = "max"
    bins: int = 2048
    start_bin: int | None = None
    stride: int = 1


@dataclass(frozen=True, kw_only=True)
class WeightSettings:
    """``[weights]``: how weights are quantized; which parameters a quantizer takes is listed below.

    Attributes:
        quantizer: ``"scaled"``, ``"fixed_point"``, ``"dorefa"``, ``"step"`` or ``"centers"``; without a name
            ``"scaled"``. A layer of settings that names one begins the section anew.
        bits: of an integer.
        alpha: of ``"fixed_point"``: ``"none"`` or ``"auto_po2"``.
        integer: of ``"fixed_point"`` with alpha ``"none"``: bits before the binary point.
        step: of ``"step"``: the distance of two values.
        centers: of ``"centers"``: how many.
        granularity: of ``"scaled"`` and ``"centers"``: ``"tensor"`` or ``"channel"``.
        block_size: of ``"scaled"``: how many values along an axis share a scale.
        axis: of ``"scaled"``: that of the scales, or the one that blocks divide.
        seed: of ``"centers"``: of the random numbers that the first centers are drawn with.
        restarts: of ``"centers"``: how many first sets of centers are tried.
    """

    quantizer: str | None = None
    bits: int | None = None
    alpha: str | None = None
    integer: int | None = None
    step: float | None = None
    centers: int | None = None
    granularity: str | None = None
    block_size: int | None = None
    axis: int | None = None
    seed: int | None = None
    restarts: int | None = None


@dataclass(frozen=True, kw_only=True)
class ActivationSettings:
    """``[activations]``: how activations are quantized, in the target's integers.

    Attributes:
        quantizer: ``"scaled"``, ``"fixed_point"`` or ``"step"``; without a name ``"scaled"``. A layer of
            settings that names one begins the section anew.
        dtype: of ``"scaled"``: ``"uint8"``, ``"int8"``, ``"uint16"`` or ``"int16"``, where the target has it.
        symmetric: of ``"scaled"``: the zero point is 0, or the middle of an unsigned type.
        integer: of ``"fixed_point"``: bits before the binary point.
        step: of ``"step"``: the distance of two values.
    """

    quantizer: str | None = None
    dtype: str | None = None
    symmetric: bool | None = None
    integer: int | None = None
    step: float | None = None


@dataclass(frozen=True, kw_only=True)
class OverrideSettings:
    """``[[override]]``: other settings for some tensors; where several match, the later wins.

    Attributes:
        match: names of tensors or layers, with ``*``, ``?`` and ``[…]`` as in a shell. An activation goes by
            its own name and by that of the layer that computes it, a weight by its own and its reader's.
        op: operator types of those layers, likewise; with ``match`` both must hold.
        quantize: ``false`` keeps the layers that match in float. ``true`` asks for them: then those operators
            with weights that nothing asks for are float.
        amax: ``amax.method`` for the activations that match.
        percentile: ``amax.percentile`` for what matches; alone it asks for the percentile method.
        weight_amax: ``amax.weight_method`` for the weights that match.
        weights: ``[weights]`` for the weights that match: ``weights = { bits = 4 }`` changes what it says,
            and one that names a quantizer begins anew.
        activations: ``[activations]`` for the activations that match, likewise.
    """

    match: str | None = None
    op: str | None = None
    quantize: bool | None = None
    amax: str | None = None
    percentile: float | None = None
    weight_amax: str | None = None
    weights: WeightSettings | None = None
    activations: ActivationSettings | None = None


@dataclass(frozen=True)
class QuantizationSettings:
    """``[quantization]``: for which target.

    Attributes:
        target: name of the table of rules, or a TOML file that holds one; see ``docs/targets.md``.
    """

    target: Location = field(default="ort-cpu", metadata=FILE_OR_NAME)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """``[evaluation]``: on what, and by which metrics, the two models are compared.

    Attributes:
        data: as in ``[calibration]``, with labels where a metric needs them.
        metrics: of each model: names of ptq's, ``"torchmetrics.classification:MulticlassF1Score"`` or
            ``"file.py:callable"``; ``"top1[aux]"`` is of ``aux``. Label-free ones are always there.
        batch_size: samples a batch.
        samples: use only the first so many; all if there is no number.
        checkpoint_every: seconds between checkpoints, as in ``[calibration]``.
        with_pytorch: evaluate the PyTorch model too, whose values then stand beside the others.
    """

    data: Location | None = field(default=None, metadata=LOCATION)
    metrics: list[str] = field(default_factory=list, metadata=ENTRY_POINTS)
    batch_size: int = 32
    samples: int | None = None
    checkpoint_every: float = 30.0
    with_pytorch: bool = False


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """``[gate]``: what the quantized model must hold, or the command exits with status 3.

    Attributes:
        max_drop: largest drop by metric, float minus quantized: ``top1 = 0.01`` is one point, ``top1 = "1%"``
            a hundredth of the float model's value.
        min: smallest value of the quantized model by metric: ``sqnr_db = 25``.
        max_size: of the quantized model's file: ``"1MB"``, ``"900KiB"``. Empty: any.
        max_latency_ratio: of the quantized model's time to the float model's, for a batch, on the machine
            that evaluates.
        baseline: an earlier ``report.json`` of the model, on the same evaluation data.
        max_regression: how much worse than the baseline's the quantized model's value may be, by metric.
        strict: whether a limit fails that the samples cannot decide. Otherwise the measured value decides.
    """

    max_drop: dict[str, Limit] = field(default_factory=dict)
    min: dict[str, float] = field(default_factory=dict)
    max_size: str = ""
    max_latency_ratio: float | None = None
    baseline: Location | None = field(default=None, metadata=LOCATION)
    max_regression: dict[str, Limit] = field(default_factory=dict)
    strict: bool = False

    @property
    def has_limits(self) -> bool:
        """Whether there is anything to decide."""
        limits = (self.max_drop, self.min, self.max_size, self.max_regression)
        return any(limits) or self.max_latency_ratio is not None


@dataclass(frozen=True)
class RuntimeSettings:
    """``[runtime]``: how ONNX Runtime runs.

    Attributes:
        device: where a calibration runs and counts: ``"cpu"``, ``"cuda"``, or ``"cuda:1"`` for the second
            GPU. An evaluation always runs on the CPU, whose integer kernels it judges.
        threads: that compute and count; 0 for one a core.
        prefetch: batches that may be decoded before they are needed.
        max_memory: peak of a calibration's memory, such as ``"2GiB"`` or ``"800MB"``. Empty: what one batch
            and its tapped tensors take. It is the host's memory, not that of a GPU.
    """

    device: str = "cpu"
    threads: int = 0
    prefetch: int = 1
    max_memory: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings, resolved.

    Example:
        >>> Recipe().calibration.method, Recipe().quantization.target
        ('histogram', 'ort-cpu')
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    image: ImageSettings = field(default_factory=ImageSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    amax: AmaxSettings = field(default_factory=AmaxSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    activations: ActivationSettings = field(default_factory=ActivationSettings)
    override: list[OverrideSettings] = field(default_factory=list)
    quantization: QuantizationSettings = field(default_factory=QuantizationSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    metric: list[MetricSettings] = field(default_factory=list)
    gate: GateSettings = field(default_factory=GateSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

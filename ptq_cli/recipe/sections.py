"""How a model is quantized and exported, and what is recovered: for all layers, and for some."""

from dataclasses import dataclass, field
from typing import Any

# Kinds of values in a recipe that are more than their type: paths, names, limits.


Location = str
"""A resolved path, or ``file.py:callable`` with a resolved file, or ``package.module:callable``."""


Limit = float | str
"""A number in the metric's unit, or a percentage such as ``"1%"``."""

LOCATION = {"location": True}
FILE_OR_NAME = {"location": True, "or_name": True}
"""A file, or a name that ptq knows, which is not a path."""

ENTRY_POINTS = {"entry_points": True}
"""Marks a field whose texts are names or entry points; the file of ``file.py:callable`` is resolved."""


ACCURACY, LATENCY, SIZE = PREFERENCES = ("accuracy", "latency", "size")
"""What ``prefer`` may be."""

FLOAT32, FLOAT16 = FLOAT_TYPES = ("float32", "float16")
"""What ``float_type`` may be."""


@dataclass(frozen=True, kw_only=True)
class WeightSettings:
    """``[weights]``: how weights are quantized; the parameters of each quantizer are listed below.

    Attributes:
        quantizer: ``"scaled"``, ``"fixed_point"``, ``"dorefa"``, ``"step"`` or ``"centers"``; ``"scaled"`` if
            not set. Settings that name a quantizer replace the whole section of earlier settings.
        bits: bits per weight.
        alpha: scale factor of ``"fixed_point"``: ``"none"`` or ``"auto_po2"``.
        integer: for ``"fixed_point"`` with alpha ``"none"``: bits before the binary point.
        step: for ``"step"``: distance between two values.
        centers: for ``"centers"``: number of centers.
        granularity: for ``"scaled"`` and ``"centers"``: ``"tensor"`` or ``"channel"``.
        block_size: for ``"scaled"``: number of values along an axis that share a scale.
        axis: for ``"scaled"``: axis of the scales, or the axis that is divided into blocks.
        dtype: for ``"scaled"``: a float type instead of integers, if the target has it: ``"float8e4m3fn"`` or
            ``"float4e2m1"``.
        symmetric: for ``"scaled"`` with blocks: ``false`` gives each block a zero point.
        seed: for ``"centers"``: seed of the random numbers that choose the first centers.
        restarts: for ``"centers"``: number of times that k-means starts from new centers.
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
    dtype: str | None = None
    symmetric: bool | None = None
    seed: int | None = None
    restarts: int | None = None


@dataclass(frozen=True, kw_only=True)
class ActivationSettings:
    """``[activations]``: how activations are quantized, to integer types of the target.

    Attributes:
        mode: ``"static"``: integers in ranges that the calibration measured; ``"float"``: floats, so that
            only weights are integers; ``"dynamic"``: integers in ranges that are found at each run. Only
            ``"static"`` needs calibration data; it is used if nothing is set. In an override it is meant for
            what the matching layers read.
        granularity: for the mode ``"dynamic"``: one scale for each ``"row"``, the values that a result is
            summed from, or one scale and zero point for the ``"tensor"``, as DynamicQuantizeLinear has.
            ``"row"`` if not set.
        quantizer: ``"scaled"``, ``"fixed_point"`` or ``"step"``; ``"scaled"`` if not set. Settings that name
            a quantizer replace the whole section of earlier settings.
        bits: for ``"scaled"``: bits per activation, for integers of 8 bits; with fewer than 8, a Clip keeps
            them within these bits.
        dtype: for ``"scaled"``: ``"uint8"``, ``"int8"``, ``"uint16"``, ``"int16"``, ``"float8e4m3fn"`` or
            ``"float4e2m1"``, if the target has it.
        symmetric: for ``"scaled"``: whether the zero point is 0, or the middle of an unsigned type.
        integer: for ``"fixed_point"``: bits before the binary point.
        step: for ``"step"``: distance between two values.
    """

    mode: str | None = None
    granularity: str | None = None
    quantizer: str | None = None
    bits: int | None = None
    dtype: str | None = None
    symmetric: bool | None = None
    integer: int | None = None
    step: float | None = None


@dataclass(frozen=True, kw_only=True)
class OverrideSettings:
    """``[[override]]``: other settings for some tensors; if several match, the last one wins.

    Attributes:
        match: names of tensors or layers, with ``*``, ``?`` and ``[…]`` as in a shell. An activation matches
            by its own name or the name of the layer that computes it, a weight by its own name or the name of
            the layer that reads it.
        op: operator types of those layers, with the same patterns; with ``match``, both have to match.
        quantize: ``false`` keeps the matching layers in float. ``true`` selects them: operators with weights
            that no override selects then stay in float.
        amax: ``amax.method`` for the matching activations.
        percentile: ``amax.percentile`` for the matching tensors; without ``amax``, it also sets the method to
            percentile.
        weight_amax: ``amax.weight_method`` for the matching weights.
        weights: ``[weights]`` for the matching weights: ``weights = { bits = 4 }`` changes that key only; if
            it names a quantizer, it replaces the whole section.
        activations: ``[activations]`` for the matching activations, with the same rule.
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
    """``[quantization]``: the target to quantize for.

    Attributes:
        target: target whose placement rules apply: a name, or a TOML file; see ``docs/targets.md``.
        all_layers: whether to quantize also layers that save neither bytes nor time.
        runtime_operators: whether the model may hold ONNX Runtime's own operators where they are faster; no
            other runtime can read it then. If not set, the target decides.
        float_type: type of what is not quantized: ``"float32"``, or ``"float16"`` if the target computes in
            the types that a file has, as TensorRT does with a strongly typed network. Inputs and outputs of
            the model keep their type.
    """

    target: Location = field(default="ort-cpu", metadata=FILE_OR_NAME)
    all_layers: bool = False
    runtime_operators: bool | None = None
    float_type: str = FLOAT32


@dataclass(frozen=True)
class RecoverySettings:
    """``[recovery]``: how accuracy that rounding cost is recovered; see ``docs/recovery.md``.

    Attributes:
        rungs: what is done, which needs the calibration data: ``"equalize"`` and ``"smooth"`` multiply
            channels of the float model where they are made and divide them where they are read, before it is
            calibrated; ``"ranges"`` chooses the method of each activation's range by what it costs the layers
            that read it; ``"round"`` chooses the scales, integers and biases of each layer again, from what
            the layer reads. ``"all"`` is every rung, ``"auto"`` is ``"equalize"``, or ``"weighed"`` and
            ``"round"`` if only weights are quantized and there are data. If empty, or ``"none"``, nothing is
            done.
    """

    rungs: list[str] = field(default_factory=lambda: ["auto"])


@dataclass(frozen=True)
class ExportSettings:
    """``[export]``: what decides where layers are computed, besides the target.

    Attributes:
        prefer: ``"accuracy"`` keeps the layers in float whose integers would save neither bytes nor time;
            ``"latency"`` also those that are faster in float on the measured machine; ``"size"`` puts
            every layer in integers that the target can.
        serve_batch: samples per run where a latency is measured; a model that fixes another number is
            measured with its own.
        profile: a file that ``ptq profile`` wrote on another machine, instead of a measurement on this one.
    """

    prefer: str = ACCURACY
    serve_batch: int = 1
    profile: Location | None = field(default=None, metadata=LOCATION)


# ``[calibration]`` and ``[amax]``: what is measured, and how ranges are decided from it.


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


# ``[model]``, ``[data]``, ``[image]`` and ``[text]``: which model, and how files become its inputs.


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """``[model]``: which model, and how to build it.

    Attributes:
        path: the model file; the argument on the command line overrides it.
        arch: ``file.py:callable`` that builds the module for a state dict.
        trust_pickle: whether to allow unpickling a whole module, which can run any code in the file.
        inputs: values of inputs that are fixed before the model is prepared, by name: a number, true or
            false, or nested lists. The model then no longer has these inputs, and data for them is not read.
        input_shape: shape of each input by its name, with the batch first, for inputs whose shape no data
            tells.
    """

    path: Location | None = field(default=None, metadata=LOCATION)
    arch: Location | None = field(default=None, metadata=LOCATION)
    trust_pickle: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)
    input_shape: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSettings:
    """``[data]``: how the arrays of calibration and evaluation data become the model's inputs.

    Attributes:
        rename: the model's input by the name of an array in the data; ``label`` names the labels. An array
            needs no entry if it has the input's name, or if it is the only one and the model has one input.
            An entry may be for one of the two data sets alone; what ``--rename`` names must be in the data
            that the command reads.
        batch_axis: axis of the samples of inputs and outputs that do not have it first, by name: a number
            from 0, or ``"none"`` for an input that has no axis for samples: each batch gets the whole array.
            ``"*"`` stands for all other inputs; with ``"none"``, each item of the data is one step, which is
            run as it is. The arrays of the data have their samples on the same axis. What is not named here
            is taken from the names of an ONNX file's sizes where they leave no doubt, with a note.
    """

    rename: dict[str, str] = field(default_factory=dict)
    batch_axis: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """``[image]``: how an image file becomes an array; the steps run in the order of the fields.

    Attributes:
        mode: ``"RGB"``, ``"BGR"`` or ``"L"`` (gray, one channel).
        resize: [height, width], or [n] for the shorter side; bilinear. If empty, the size stays.
        crop: [height, width] of the part to cut from the center. If empty, nothing is cut.
        scale: factor for the pixel values 0 to 255, applied before mean and std.
        mean: value to subtract: one per channel, or one for all channels.
        std: value to divide by: one per channel, or one for all channels.
        layout: order of the axes: ``"NCHW"`` or ``"NHWC"``.
    """

    mode: str = "RGB"
    resize: list[int] = field(default_factory=list)
    crop: list[int] = field(default_factory=list)
    scale: float = 1 / 255
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[float] = field(default_factory=lambda: [1.0])
    layout: str = "NCHW"


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """``[text]``: how texts become the tokens that a model reads; see ``docs/text.md``.

    Attributes:
        tokenizer: the model's ``tokenizer.json``, or a folder that holds it.
        columns: columns of the texts in JSON lines or Parquet, one, or two for pairs; ``text`` if empty.
        label_column: column of the labels; ``label`` or ``labels``, if there is one, if not set.
        window: tokens per sample; if not set, what the model's shapes say, or 128.
        stride: tokens from the start of one window to that of the next; the window if not set.
        tail: ``"drop"`` leaves out the rest of the text that is shorter than a window, ``"pad"`` fills it up.
        pack: whether the texts are joined and cut into windows; otherwise each text is a sample, cut or
            filled up to the window. If not set, they are joined unless there are labels or pairs, tokens are
            masked, or the tokenizer puts tokens around each text, as those of encoders do.
        pairs: ``"joined"`` reads both texts of a pair as one sample, ``"apart"`` as two, one after the other.
        mask_share: share of the tokens, 0 to 0.9, that are hidden behind the mask token, for ``masked_top1``.
    """

    tokenizer: Location | None = field(default=None, metadata=LOCATION)
    columns: list[str] = field(default_factory=list)
    label_column: str | None = None
    window: int | None = None
    stride: int | None = None
    tail: str = "drop"
    pack: bool | None = None
    pairs: str = "joined"
    mask_share: float = 0.0


# ``[evaluation]``, ``[[metric]]``, ``[gate]`` and ``[tune]``: how a model is judged.


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """``[evaluation]``: the data and the metrics that the two models are compared with.

    Attributes:
        data: as in ``[calibration]``, with labels if a metric needs them.
        metrics: metrics to compute for each model: names of metrics in ptq,
            ``"torchmetrics.classification:MulticlassF1Score"`` or ``"file.py:callable"``; ``"top1[aux]"`` is
            for the output ``aux``. Metrics without labels are always computed.
        batch_size: samples per batch.
        samples: number of samples to use, from the first on; all if it is not set.
        checkpoint_every: seconds between checkpoints, as in ``[calibration]``.
        with_pytorch: whether to evaluate the PyTorch model, too; its values are shown next to the others.
        latency: whether to measure how fast the quantized model is, for at most a few seconds: beside the
            float model, and beside the file that was given if it is ONNX.
    """

    data: Location | None = field(default=None, metadata=LOCATION)
    metrics: list[str] = field(default_factory=list, metadata=ENTRY_POINTS)
    batch_size: int = 32
    samples: int | None = None
    checkpoint_every: float = 30.0
    with_pytorch: bool = False
    latency: bool = True


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """``[[metric]]``: a metric with arguments; each metric that is defined is computed.

    Attributes:
        metric: the name of a metric in ptq, ``"file.py:callable"``, or a class such as
            ``"torchmetrics.classification:MulticlassF1Score"``.
        name: name of the metric in reports and limits; if not set, the name of the class or function, with
            the output in brackets.
        output: name of the output that it is computed on; the first output if not set.
        arguments: arguments of its constructor; a function gets them in addition to output and labels. For
            metrics of torchmetrics, ``num_classes`` and ``num_labels`` come from the output if they are not
            given.
        higher_is_better: false for an error; if not set, the metric itself decides.
    """

    metric: str = field(metadata=ENTRY_POINTS)
    name: str | None = None
    output: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    higher_is_better: bool | None = None


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """``[gate]``: limits for the quantized model; if one fails, the command exits with status 3.

    Attributes:
        max_drop: largest drop per metric, float minus quantized: ``top1 = 0.01`` is one percentage point,
            ``top1 = "1%"`` is 1 % of the float model's value.
        max_ratio: largest ratio of the quantized model's value to the float model's, per metric that is
            better when lower: ``perplexity = 1.02`` or ``"102%"`` allows 2 % more.
        min: smallest value of the quantized model per metric: ``sqnr_db = 25``; of a share ``top1 = 0.8`` or
            ``"80%"``.
        max_size: largest size of the quantized model's file: ``"1MB"``, ``"900KiB"``. If empty, there is no
            limit.
        max_latency_ratio: largest ratio of the quantized model's time to the float model's time for a batch
            of ``serve_batch`` samples, on the machine that evaluates.
        require_portable: whether a layer may not be able to saturate on x86 processors without VNNI.
        baseline: an earlier ``report.json`` of the model, on the same evaluation data.
        max_regression: how much worse than in the baseline the quantized model's value may be, per metric.
        strict: whether a limit fails if there are too few samples to decide it. Otherwise the measured value
            decides.
    """

    max_drop: dict[str, Limit] = field(default_factory=dict)
    max_ratio: dict[str, Limit] = field(default_factory=dict)
    min: dict[str, Limit] = field(default_factory=dict)
    max_size: str = ""
    max_latency_ratio: float | None = None
    require_portable: bool = False
    baseline: Location | None = field(default=None, metadata=LOCATION)
    max_regression: dict[str, Limit] = field(default_factory=dict)
    strict: bool = False

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit."""
        limits = (self.max_drop, self.max_ratio, self.min, self.max_size, self.max_regression)
        return any(limits) or self.max_latency_ratio is not None or self.require_portable


@dataclass(frozen=True)
class TuneSettings:
    """``[tune]``: what ``ptq tune`` may lose, and how long it may take; see ``docs/tune.md``.

    Attributes:
        budget: largest drop per metric, or smallest value of a metric that compares the two models: ``top1 =
            0.005`` is half a percentage point, ``top1 = "0.5%"`` is 0.5 % of the float model's value,
            ``sqnr_db = 30`` is at least 30 dB.
        time_budget: longest time for the whole command, such as ``"10m"``, ``"90s"`` or ``"1h"``. If empty,
            there is no limit.
    """

    budget: dict[str, Limit] = field(default_factory=dict)
    time_budget: str = ""


# ``[runtime]``: the machine.


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """``[runtime]``: how ONNX Runtime runs.

    Attributes:
        device: device that a calibration runs on: ``"cpu"``, ``"cuda"``, or ``"cuda:1"`` for the second GPU.
            An evaluation always runs on the CPU, because it tests the CPU's integer kernels.
        threads: number of threads; 0 for one per core.
        prefetch: number of batches to decode ahead.
        max_memory: limit for the peak memory of a calibration, such as ``"2GiB"`` or ``"800MB"``. If empty,
            it takes what one batch and its measured tensors need. It limits the host's memory, not a GPU's.
            A recovery keeps half of it, or else 2 GiB, for the tensors between layers, and the rest of them
            in a file in the folder of the output.
        accuracy_level: accuracy level at which a quantized model with weights in blocks is measured, 0 to 4;
            ONNX Runtime's default, 4, if not set. It is an option of the session that runs the model, and is
            not stored in it; see ``docs/weight_only.md``.
    """

    device: str = "cpu"
    threads: int = 0
    prefetch: int = 1
    max_memory: str = ""
    accuracy_level: int | None = None

"""How a model is quantized and exported, and what is recovered: for all layers, and for some."""

from dataclasses import dataclass, field

from ptq_cli.recipe.sections.field_kinds import FILE_OR_NAME, LOCATION, Location

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
            ``"latency"`` also those that are faster so on the machine that is measured; ``"size"`` puts
            every layer in integers that the target can.
        serve_batch: samples per run where a latency is measured; a model that fixes another number is
            measured with its own.
        profile: a file that ``ptq profile`` wrote on another machine, instead of a measurement on this one.
    """

    prefer: str = ACCURACY
    serve_batch: int = 1
    profile: Location | None = field(default=None, metadata=LOCATION)

"""Every setting is also a flag: which key of the recipe each flag of the command line sets.

The Python API takes the same settings with the same names, as keyword arguments.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from ptq_cli.core.errors import UsageError
from ptq_cli.core.known_names import did_you_mean
from ptq_cli.recipe.sections import Limit


class SharedSettings(TypedDict, total=False):
    """The settings whose names no function has for an argument of its own."""

    arch: str
    trust_pickle: bool
    input: dict[str, Any]
    input_shape: dict[str, list[int]]
    rename: dict[str, str]
    batch_axis: dict[str, int | str]
    data: Any
    method: str
    batch_size: int
    samples: int
    set_aside: float
    checkpoint_every: float
    activation_axis: dict[str, int]
    allow_nonfinite: bool
    amax: str
    percentile: float
    weight_amax: str
    amax_bins: int
    amax_start_bin: int
    amax_stride: int
    weight_quantizer: str
    weight_bits: int
    weight_alpha: str
    weight_integer: int
    weight_step: float
    weight_centers: int
    weight_granularity: str
    weight_block_size: int
    weight_axis: int
    weight_dtype: str
    weight_symmetric: bool
    weight_seed: int
    weight_restarts: int
    activation_mode: str
    activation_granularity: str
    activation_quantizer: str
    activation_bits: int
    activation_dtype: str
    activation_symmetric: bool
    activation_integer: int
    activation_step: float
    include: list[str]
    include_op: list[str]
    exclude: list[str]
    exclude_op: list[str]
    all_layers: bool
    runtime_operators: bool
    float_type: str
    override: list[dict[str, Any]]
    target: str
    recover: list[str]
    prefer: str
    serve_batch: int
    eval_data: Any
    metric: list[str]
    with_pytorch: bool
    latency: bool
    eval_samples: int
    max_drop: dict[str, Limit]
    max_ratio: dict[str, Limit]
    min: dict[str, Limit]
    max_size: str
    max_latency_ratio: float
    require_portable: bool
    baseline: str
    max_regression: dict[str, Limit]
    strict: bool
    budget: dict[str, Limit]
    time_budget: str
    device: str
    prefetch: int
    max_memory: str
    tokenizer: str
    text_column: list[str]
    label_column: str
    window: int
    stride: int
    tail: str
    pack: bool
    pairs: str
    mask_share: float
    image_mode: str
    resize: list[int]
    crop: list[int]
    scale: float
    mean: list[float]
    std: list[float]
    layout: str


class Settings(SharedSettings, total=False):
    """The recipe's settings by the name of their flag; what is not given comes from the lower layers.

    The meaning of each is described in ``ptq_cli.recipe.schema``.
    """

    profile: str
    threads: int
    accuracy_level: int


FLAG_KEYS: dict[str, tuple[str, ...]] = {
    "arch": ("model.arch",),
    "trust_pickle": ("model.trust_pickle",),
    "input": ("model.inputs",),
    "input_shape": ("model.input_shape",),
    "rename": ("data.rename",),
    "batch_axis": ("data.batch_axis",),
    "data": ("calibration.data",),
    "method": ("calibration.method",),
    "batch_size": ("calibration.batch_size", "evaluation.batch_size"),
    "samples": ("calibration.samples",),
    "set_aside": ("calibration.set_aside",),
    "checkpoint_every": ("calibration.checkpoint_every", "evaluation.checkpoint_every"),
    "activation_axis": ("calibration.activation_axis",),
    "allow_nonfinite": ("calibration.allow_nonfinite",),
    "amax": ("amax.method",),
    "percentile": ("amax.percentile",),
    "weight_amax": ("amax.weight_method",),
    "amax_bins": ("amax.bins",),
    "amax_start_bin": ("amax.start_bin",),
    "amax_stride": ("amax.stride",),
    "weight_quantizer": ("weights.quantizer",),
    "weight_bits": ("weights.bits",),
    "weight_alpha": ("weights.alpha",),
    "weight_integer": ("weights.integer",),
    "weight_step": ("weights.step",),
    "weight_centers": ("weights.centers",),
    "weight_granularity": ("weights.granularity",),
    "weight_block_size": ("weights.block_size",),
    "weight_axis": ("weights.axis",),
    "weight_dtype": ("weights.dtype",),
    "weight_symmetric": ("weights.symmetric",),
    "weight_seed": ("weights.seed",),
    "weight_restarts": ("weights.restarts",),
    "activation_mode": ("activations.mode",),
    "activation_granularity": ("activations.granularity",),
    "activation_quantizer": ("activations.quantizer",),
    "activation_bits": ("activations.bits",),
    "activation_dtype": ("activations.dtype",),
    "activation_symmetric": ("activations.symmetric",),
    "activation_integer": ("activations.integer",),
    "activation_step": ("activations.step",),
    "all_layers": ("quantization.all_layers",),
    "runtime_operators": ("quantization.runtime_operators",),
    "float_type": ("quantization.float_type",),
    "target": ("quantization.target",),
    "recover": ("recovery.rungs",),
    "prefer": ("export.prefer",),
    "serve_batch": ("export.serve_batch",),
    "profile": ("export.profile",),
    "eval_data": ("evaluation.data",),
    "metric": ("evaluation.metrics",),
    "with_pytorch": ("evaluation.with_pytorch",),
    "latency": ("evaluation.latency",),
    "eval_samples": ("evaluation.samples",),
    "max_drop": ("gate.max_drop",),
    "max_ratio": ("gate.max_ratio",),
    "min": ("gate.min",),
    "max_size": ("gate.max_size",),
    "max_latency_ratio": ("gate.max_latency_ratio",),
    "require_portable": ("gate.require_portable",),
    "baseline": ("gate.baseline",),
    "max_regression": ("gate.max_regression",),
    "strict": ("gate.strict",),
    "budget": ("tune.budget",),
    "time_budget": ("tune.time_budget",),
    "device": ("runtime.device",),
    "threads": ("runtime.threads",),
    "accuracy_level": ("runtime.accuracy_level",),
    "prefetch": ("runtime.prefetch",),
    "max_memory": ("runtime.max_memory",),
    "tokenizer": ("text.tokenizer",),
    "text_column": ("text.columns",),
    "label_column": ("text.label_column",),
    "window": ("text.window",),
    "stride": ("text.stride",),
    "tail": ("text.tail",),
    "pack": ("text.pack",),
    "pairs": ("text.pairs",),
    "mask_share": ("text.mask_share",),
    "image_mode": ("image.mode",),
    "resize": ("image.resize",),
    "crop": ("image.crop",),
    "scale": ("image.scale",),
    "mean": ("image.mean",),
    "std": ("image.std",),
    "layout": ("image.layout",),
}

OVERRIDE_FLAGS: dict[str, tuple[str, bool]] = {
    "include": ("match", True),
    "include_op": ("op", True),
    "exclude": ("match", False),
    "exclude_op": ("op", False),
}
"""Flags of which each value is an override: the key that it is a pattern for, and ``quantize``."""
OVERRIDE = "override"
"""The flag for whole overrides. Overrides of flags follow those of the recipe, in this order."""


def settings_to_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by flag name as a recipe's nested tables.

    A key with its section, such as ``calibration.batch_size``, is a name, too, and overrides the flags.

    Edge case:
        A percentile alone also sets the method to percentile, because no other method has one. With
        ``weight_amax="percentile"`` it is for the weights.

    Raises:
        UsageError: there is no setting of that name, or its value is not a list; only the Python API can
            cause this.

    Example:
        >>> settings_to_table({"method": "max", "batch_size": 8})["calibration"]
        {'method': 'max', 'batch_size': 8}
        >>> settings_to_table({"percentile": 99.9})
        {'amax': {'percentile': 99.9, 'method': 'percentile'}}
        >>> settings_to_table({"exclude": ["head.*"], "include_op": ["Conv"]})["override"]
        [{'op': 'Conv', 'quantize': True}, {'match': 'head.*', 'quantize': False}]
    """
    table: dict[str, Any] = {}
    known = [*FLAG_KEYS, *OVERRIDE_FLAGS, OVERRIDE]
    for name, value in sorted(settings.items(), key=lambda item: "." in item[0]):
        if name not in known and "." not in name:
            raise UsageError(
                f"there is no setting '{name}'{did_you_mean(name, known)}",
                hint=f"settings: {', '.join(known)}",
            )
        for key in (name,) if "." in name else FLAG_KEYS.get(name, ()):
            section, _, field = key.partition(".")
            table.setdefault(section, {})[field] = value
    if "percentile" in settings and "amax" not in settings and settings.get("weight_amax") != "percentile":
        table["amax"]["method"] = "percentile"
    for name in (*OVERRIDE_FLAGS, OVERRIDE):
        # A text would be taken for the list of its characters.
        if not isinstance(settings.get(name, ()), (list, tuple)):
            raise UsageError(f"'{name}' is {settings[name]!r:.80}, expected a list", hint=f"correct '{name}'")
    overrides = [
        {key: pattern, "quantize": quantize}
        for name, (key, quantize) in OVERRIDE_FLAGS.items()
        for pattern in settings.get(name, ())
    ]
    overrides += settings.get(OVERRIDE, ())
    return {**table, "override": overrides} if overrides else table

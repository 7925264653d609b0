"""Every setting of a recipe, declared once: how a model is quantized and exported, and with which data."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ptq_cli.core.words import parse_duration, parse_size
from ptq_cli.recipe.declaration import (
    ALL,
    AUTO,
    GRANULARITIES,
    MODES,
    NONE,
    REQUIRED,
    RUNGS,
    Setting,
    setting,
    settings_of,
)
from ptq_cli.recipe.quantizer_families import FAMILIES

# A resolved path, or ``file.py:callable`` with a resolved file, or ``package.module:callable``.
Location = str


Limit = float | str  # A number in the metric's unit, or a percentage such as ``"1%"``.

ACCURACY, LATENCY, SIZE = "accuracy", "latency", "size"  # Values of ``prefer``, beside ``auto``.
PREFERENCES = (AUTO, ACCURACY, LATENCY, SIZE)

FLOAT32, FLOAT16 = FLOAT_TYPES = ("float32", "float16")  # Values of ``float_type``.

MOST_BINS = 65536  # Bins of a linear histogram; the searches take time in proportion.

# ONNX Runtime starts as many as it is told to; with a million the kernel ends the process without a word.
MOST_THREADS = 1024

_SECONDS: dict[str, Any] = {"low": 0, "high": sys.float_info.max, "wanted": "0 or more, and finite"}
PATTERNS = "with `*`, `?` and `[…]` as in a shell"

Section = TypeVar("Section")


def _with_parameters(families: dict[str, type]) -> Callable[[type[Section]], type[Section]]:
    """A decorator that adds to a section what any of its quantizers takes, not set by default."""

    def extend(section: type[Section]) -> type[Section]:
        takers: dict[str, dict[str, Setting]] = {}
        for family, kind in families.items():
            for item in settings_of(kind):
                takers.setdefault(item.key, {})[family] = item
        for key, taken in takers.items():
            found = [*taken.values()]
            names = ", ".join(f"`{name}`" for name in FAMILIES if name in taken)
            only = "" if len(taken) == len(families) else f" Only for {names}."
            section.__annotations__[key] = found[0].type | None
            added = setting(
                None,
                found[0].help + only,
                low=min((item.low for item in found if item.low is not None), default=None),
                high=max((item.high for item in found if item.high is not None), default=None),
                choices=tuple(dict.fromkeys(word for item in found for word in item.choices)),
                wanted=found[0].wanted if len({item.wanted for item in found}) == 1 else "",
            )
            setattr(section, key, added)
        return section

    return extend


def _of_weights() -> dict[str, type]:
    # What a family takes keeps its order in the metadata of a model, whichever families are declared.
    first, *others = FAMILIES.values()
    return {family.name: family.weights for family in (*others, first)}


def _of_activations() -> dict[str, type]:
    return {
        family.name: family.activations
        for family in FAMILIES.values()
        if not isinstance(family.activations, str)
    }


@dataclass(frozen=True, kw_only=True)
@_with_parameters(_of_weights())
class WeightSettings:
    """How weights are quantized.

    Its settings are those of all quantizers; which one takes which is declared in ``quantizer_families``.
    """

    quantizer: str | None = setting(
        None,
        "Quantizer of weights, `scaled` if not set.",
        choices={family.name: family.meaning for family in FAMILIES.values()},
    )

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
@_with_parameters(_of_activations())
class ActivationSettings:
    """How activations are quantized."""

    mode: str | None = setting(
        None,
        "`static`, if not set, quantizes activations with calibrated ranges, `dynamic` with ranges found at "
        "each run, `float` only weights. In an override it is for what the matching layers read.",
        choices=MODES,
    )
    granularity: str | None = setting(
        None,
        "With mode `dynamic`: one scale per `row`, the values that a result is summed from, or one scale "
        "and zero point per `tensor`, as DynamicQuantizeLinear has; `row` if not set.",
        choices=GRANULARITIES,
    )
    quantizer: str | None = setting(
        None,
        "Quantizer of activations, `scaled` if not set.",
        choices={family.name: family.meaning for family in FAMILIES.values() if family.takes_activations},
    )

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class OverrideSettings:
    """Other settings for some tensors; if several overrides match, the last one wins."""

    match: str | None = setting(
        None,
        f"Names of tensors or layers, {PATTERNS}; an activation also matches by the layer that computes it, "
        "a weight by the layer that reads it.",
    )
    op: str | None = setting(
        None, "Operator types of those layers, with the same patterns; with `match`, both have to match."
    )
    quantize: bool | None = setting(
        None,
        "`false` keeps the matching layers in float; `true` selects them, and operators with weights that no "
        "override selects stay in float.",
    )
    amax: str | None = setting(
        None,
        "`amax.method` for the matching activations; `percentile 99.9` also says which.",
        names="amax method",
        is_open=True,
    )
    weight_amax: str | None = setting(
        None,
        "`amax.weight_method` for the matching weights, likewise.",
        names="amax method of weights",
        is_open=True,
    )
    weights: WeightSettings | None = setting(
        None,
        "`[weights]` for the matching weights: `weights = { bits = 4 }` changes that key only; naming a "
        "quantizer replaces the whole section.",
    )
    activations: ActivationSettings | None = setting(
        None, "`[activations]` for the matching activations, with the same rule."
    )


@dataclass(frozen=True)
class QuantizationSettings:
    """The target to quantize for ([targets.md](targets.md))."""

    target: Location = setting(
        "ort-cpu",
        "Target whose placement rules apply: a name, or a TOML file.",
        names="target",
        is_open=True,
        is_location=True,
    )
    runtime_operators: bool | None = setting(
        None,
        "Use ONNX Runtime's own operators where they are faster; no other runtime can then read the model. "
        "If not set, the target decides.",
    )
    float_type: str = setting(
        FLOAT32,
        "Type of what is not quantized; `float16` if the target computes in the types of the file, as "
        "TensorRT does. Inputs and outputs keep their type.",
        choices=FLOAT_TYPES,
    )


@dataclass(frozen=True)
class RecoverySettings:
    """How accuracy lost by rounding is recovered ([recovery.md](recovery.md))."""

    rungs: list[str] = setting(
        ["auto"],
        "Recovery steps that use the calibration data; `auto` is `equalize` and what brings the "
        "worst output to 20 dB, with ranges found at each run `smooth` too, `bits` and `round` if only "
        "weights are quantized; an empty list is `none`.",
        name="recover",
        choices={**RUNGS, ALL: "all of them", AUTO: "what the model gains from", NONE: "nothing"},
    )


@dataclass(frozen=True, kw_only=True)
class AccuracySettings:
    """What a quantized model has to keep."""

    goal_db: float = setting(
        20.0,
        "SQNR of the worst output on calibration data, in dB: `auto` improves a model that has less. A "
        "limit of `sqnr_db` above it, up to 40, counts instead.",
        low=0,
        high=200,
    )


@dataclass(frozen=True)
class ExportSettings:
    """What decides where layers are computed, besides the target."""

    prefer: str = setting(
        AUTO,
        "`auto`, with 8 bits on ONNX Runtime, keeps layers in float that are faster so, and writes no larger "
        "file; `accuracy` only those whose integers save neither bytes nor time, `latency` those that are "
        "faster in float on the measured machine; `size` quantizes every layer that the target can.",
        choices=PREFERENCES,
    )
    serve_batch: int = setting(
        1, "Samples per run where latency is measured, unless the model fixes another number.", low=1
    )
    profile: Location | None = setting(
        None,
        "Profile that `ptq bench --operators` wrote on another machine, used instead of measuring this one.",
        is_location=True,
    )
    soc_model: int = setting(
        60, "Qualcomm's number of the chip that `ptq export --context` compiles for, such as 60.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Which data runs through the model, and which statistics are collected."""

    data: Location | None = setting(
        None,
        "Calibration data: an npz file or a folder of them, an npy file, a folder of images, tar shards, "
        "Parquet files, texts with a `tokenizer`, or `file.py:callable` that yields batches.",
        is_location=True,
        takes_objects=True,
    )
    method: str = setting("histogram", "Statistics to collect.", names="collector")
    samples: int | None = setting(
        None, "Number of calibration samples to use, from the first on; all if not set.", low=1
    )
    set_aside: float = setting(
        0.0,
        "Fraction of the calibration samples held out, spread evenly, so that `ptq tune` can decide by them.",
        low=0,
        high=0.9,
    )
    allow_nonfinite: bool = setting(
        False, "Count NaN and infinities instead of stopping, and decide ranges from the finite values."
    )


@dataclass(frozen=True, kw_only=True)
class AmaxSettings:
    """How ranges are decided from the statistics."""

    method: str = setting(
        "auto",
        "Method for activation ranges; `auto` is `percentile` with histograms and `max` without.",
        name="amax",
        names="amax method",
    )
    percentile: float = setting(
        99.999,
        "Percentage of the values that a range holds, for `percentile`.",
        name="percentile",
        above=0,
        high=100,
    )
    weight_method: str = setting(
        "max",
        "Method for weight ranges, from the weights themselves.",
        name="weight_amax",
        names="amax method of weights",
    )
    bins: int = setting(
        2048,
        "Bins of the linear histogram that `entropy` and `mse` search; a calibration has enough detail for "
        "2048.",
        low=2,
        high=MOST_BINS,
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model, and how to build it."""

    path: Location | None = setting(
        None, "Model file; the argument `MODEL` of a command overrides it.", name="", is_location=True
    )
    arch: Location | None = setting(
        None, "`file.py:callable` that builds the module for a state dict.", is_location=True
    )
    trust_pickle: bool = setting(
        False, "Allow unpickling a whole module, which can run any code in the file."
    )
    inputs: dict[str, Any] = setting(
        {},
        "Inputs fixed to a constant before the model is prepared, by name: a number, true or false, or "
        "nested lists. Data for them is not read.",
        name="input",
    )
    input_shape: dict[str, list[int]] = setting(
        {}, "Shapes of inputs by name, batch first, for those whose shape no data tells."
    )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How the arrays of calibration and evaluation data become the model's inputs."""

    rename: dict[str, str] = setting(
        {},
        "Model input by the name of an array in the data; `label` names the labels. A sole array needs none.",
    )
    batch_size: int = setting(32, "Samples per batch; it does not change the result.", low=1)
    batch_axis: dict[str, int | str] = setting(
        {},
        "Sample axis of inputs and outputs by name, where it is not the first: a number from 0, or `none` "
        "for an input that gets the whole array with each batch. `*` stands for all other inputs; with "
        "`none` each item of the data is one step, run as it is.",
    )
    carry: dict[str, str] = setting(
        {},
        "Outputs that are inputs of the next step, input by output, `*` for what both end with: the data are "
        "recordings then. If empty, "
        "those whose names and shapes show it and that the data do not have; `*` with `none` for no output.",
    )
    steps: int | None = setting(
        None, "Steps to use of each recording, from the first on; all if not set.", low=1
    )
    frame: list[int] = setting(
        [],
        "Values of a step where a recording is one row of values, if the model does not say it; `[576, 512]` "
        "starts the next step 512 values later, and the first one begins with zeros.",
        wanted="one or two numbers, at least 1",
    )


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How an image file becomes an array; the steps run in this order."""

    mode: str = setting(
        "RGB", "Color channels: `RGB`, `BGR` or `L` (gray).", name="image_mode", names="image mode"
    )
    resize: list[int] = setting(
        [], "[height, width], or [n] for the shorter side; bilinear. If empty, the size stays."
    )
    crop: list[int] = setting([], "[height, width] to cut from the center. If empty, nothing is cut.")
    scale: float = setting(1 / 255, "Factor for the pixel values 0 to 255, applied before `mean` and `std`.")
    mean: list[float] = setting([0.0], "Mean to subtract: one per channel, or one for all.")
    std: list[float] = setting([1.0], "Standard deviation to divide by: one per channel, or one for all.")
    layout: str = setting("NCHW", "Order of the axes: `NCHW` or `NHWC`.", names="layout")


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How texts become the tokens that a model reads ([text.md](text.md))."""

    tokenizer: Location | None = setting(
        None, "The model's `tokenizer.json`, or a folder that holds it.", is_location=True
    )
    columns: list[str] = setting(
        [],
        "Columns of the texts in JSON lines or Parquet; `text` if empty.",
        name="text_column",
        wanted="one column, or two for pairs",
    )
    label_column: str | None = setting(
        None, "Column of the labels; if not set, `label` or `labels`, if there is one."
    )
    window: int | None = setting(
        None, "Tokens per sample; if not set, what the model's shapes say, or 128.", low=2
    )
    stride: int | None = setting(
        None,
        "Tokens from the start of one window to the start of the next; the window if not set.",
        low=1,
        wanted="at least 1, and at most the window",
    )
    tail: str = setting(
        "drop",
        "What to do with leftover text shorter than a window: `drop` or `pad` it.",
        choices=("drop", "pad"),
    )
    pack: bool | None = setting(
        None,
        "Join texts and cut them into windows, or make each text a sample. If not set, texts are joined "
        "unless there are labels or pairs, tokens are masked, or the tokenizer puts tokens around each text.",
    )
    pairs: str = setting(
        "joined",
        "Read both texts of a pair `joined` as one sample, or `apart` as two.",
        choices=("joined", "apart"),
    )
    mask_share: float = setting(
        0.0, "Fraction of the tokens hidden behind the mask token, for `masked_top1`.", low=0, high=0.9
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The data and the metrics that the two models are compared with."""

    data: Location | None = setting(
        None,
        "Evaluation data as in `[calibration]`, with labels if a metric needs them.",
        name="eval_data",
        is_location=True,
        takes_objects=True,
    )
    metrics: list[str] = setting(
        [],
        "Metrics for each model: names, `torchmetrics.classification:MulticlassF1Score` or "
        "`file.py:callable`; `top1[aux]` is for the output `aux`.",
        name="metric",
        names="metric",
        is_open=True,
        is_entry_point=True,
    )
    samples: int | None = setting(
        None,
        "Number of evaluation samples to use, from the first on; all if not set.",
        name="eval_samples",
        low=1,
    )
    generate: int | None = setting(
        None,
        "Tokens by which the models continue each prompt greedily; `generated_equal` is the share of equal "
        "ones.",
        name="generate",
        low=1,
    )
    latency: bool = setting(
        True, "Measure the quantized model's speed, for a few seconds at most, next to the float model's."
    )


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """A metric with arguments; each metric that is defined is computed."""

    metric: str = setting(
        REQUIRED,
        "Name of a metric, `file.py:callable`, or a class such as "
        "`torchmetrics.classification:MulticlassF1Score`; `top1[aux]` is for the output `aux`.",
        is_entry_point=True,
    )
    name: str | None = setting(
        None,
        "Name in reports and limits; if not set, that of the class or function, with the output in brackets.",
    )
    arguments: dict[str, Any] = setting(
        {}, "Arguments of its constructor; a function gets them in addition to output and labels."
    )
    higher_is_better: bool | None = setting(
        None, "`false` for an error; if not set, the metric itself decides."
    )


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """Limits for the quantized model; if one fails, the command exits with status 3."""

    max_drop: dict[str, Limit] = setting(
        {},
        "Largest drop per metric, float minus quantized: `top1 = 0.01` is one percentage point, "
        '`top1 = "1%"` is 1 % of the float model\'s value.',
    )
    max_ratio: dict[str, Limit] = setting(
        {},
        "Largest ratio of quantized to float value, per metric that is better when lower: "
        '`perplexity = 1.02` or `"102%"` allows 2 % more.',
    )
    min: dict[str, Limit] = setting(
        {}, 'Smallest value of the quantized model per metric: `sqnr_db = 25`, `top1 = 0.8` or `"80%"`.'
    )
    max_drift: dict[str, Limit] = setting(
        {},
        "How much worse a metric may be in the last tenth of each recording's steps than in the first: "
        "`sqnr_db = 3`.",
    )
    max_size: str = setting(
        "", "Largest size of the quantized model's file: `1MB`, `900KiB`; no limit if empty."
    )
    max_latency_ratio: float | None = setting(
        None,
        "Largest ratio of quantized to float time for a batch of `serve_batch` samples, on the machine that "
        "evaluates.",
    )
    require_portable: bool = setting(False, "Fail if a layer could saturate on x86 processors without VNNI.")
    baseline: Location | None = setting(
        None, "Earlier `report.json` of the model, on the same evaluation data.", is_location=True
    )
    max_regression: dict[str, Limit] = setting(
        {}, "How much worse than in the baseline the quantized model may be, per metric."
    )
    strict: bool = setting(
        False, "Fail a limit that there are too few samples to decide; otherwise the measured value decides."
    )

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics whose values have limits."""
        return [*self.max_drop, *self.max_ratio, *self.min, *self.max_regression]

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit."""
        limits = (self.max_drop, self.max_ratio, self.min, self.max_drift, self.max_size, self.max_regression)
        return any(limits) or self.max_latency_ratio is not None or self.require_portable


@dataclass(frozen=True)
class TuneSettings:
    """What `ptq tune` may lose, and how long it may take ([tune.md](tune.md))."""

    budget: dict[str, Limit] = setting(
        {},
        "Largest drop per metric, as in `gate.max_drop`: `top1 = '0.5%'`; or smallest value of a metric that "
        "compares the two models: `sqnr_db = 30`.",
    )
    time_budget: str = setting(
        "",
        "Longest time for the whole command; no limit if empty.",
        parse=parse_duration,
        wanted="a time such as 90s, 10m or 1h",
    )


_ENGINES = ("onnxruntime", "openvino", "qnn")  # The runtimes, by the names that a target's table has.


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """How ONNX Runtime runs."""

    device: str = setting(
        "cpu",
        "Device for a calibration, and for the float model in an evaluation: `cpu`, `cuda`, or `cuda:1` for "
        "the second GPU. Quantized models always run on the CPU.",
        choices=("cpu", "cuda"),
        is_open=True,
    )
    threads: int = setting(0, "Number of threads; 0 for one per core.", low=0, high=MOST_THREADS)
    checkpoint_every: float = setting(
        30.0,
        "Seconds between checkpoints, from which an interrupted run continues; 0: one after each batch.",
        **_SECONDS,
    )
    max_memory: str = setting(
        "",
        "Limit for the peak host memory of a calibration, and of what it takes of a GPU's; if empty, what "
        "one batch and its measured tensors need.",
        parse=parse_size,
        wanted="a size such as 2GiB or 800MB",
    )
    engine: str | None = setting(
        None,
        "Runtime that evaluates and verifies quantized models; the target's own if not set. `qnn` is the "
        "simulator of Qualcomm's HTP.",
        choices=_ENGINES,
    )

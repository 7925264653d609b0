"""Every setting of ptq, with its default: the sections of a recipe in one value.

A section is a dataclass in ``sections``, a key is a field, and adding a setting needs no other change. What
is declared to be a location holds a path or a ``file.py:callable``; it is relative to the folder of the file
that names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args, get_origin

from ptq_cli.recipe.declaration import Setting, settings_of
from ptq_cli.recipe.sections import (
    ActivationSettings,
    AmaxSettings,
    CalibrationSettings,
    DataSettings,
    EvaluationSettings,
    ExportSettings,
    GateSettings,
    ImageSettings,
    MetricSettings,
    ModelSettings,
    OverrideSettings,
    QuantizationSettings,
    RecoverySettings,
    RuntimeSettings,
    TextSettings,
    TuneSettings,
    WeightSettings,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings, resolved."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    amax: AmaxSettings = field(default_factory=AmaxSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    activations: ActivationSettings = field(default_factory=ActivationSettings)
    override: list[OverrideSettings] = field(default_factory=list)
    quantization: QuantizationSettings = field(default_factory=QuantizationSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    metric: list[MetricSettings] = field(default_factory=list)
    gate: GateSettings = field(default_factory=GateSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)


# First part of the names of a section's settings in Python, where no name is declared.
PREFIXES = {"amax": "amax_", "weights": "weight_", "activations": "activation_"}


def sections() -> Iterator[tuple[str, Any, bool]]:
    """Yield each section's name, its dataclass, and whether a recipe can have several of it.

    Example:
        >>> [name for name, _, several in sections() if several]
        ['override', 'metric']
    """
    for item in fields(Recipe):
        several = get_origin(item.type) is list
        yield item.name, get_args(item.type)[0] if several else item.type, several


def _declared() -> Iterator[Setting]:
    for section, kind, several in sections():
        # What a recipe can have several of is set by neither flags nor keyword arguments.
        found = settings_of(kind, section, PREFIXES.get(section, ""))
        yield from (replace(item, name="") if several else item for item in found)


# Keys that recipes once had, with what to do instead.
FORMER_KEYS = {
    "calibration.batch_size": "data.batch_size holds for calibration and evaluation",
    "evaluation.batch_size": "data.batch_size holds for calibration and evaluation",
    "calibration.checkpoint_every": "runtime.checkpoint_every holds for all that writes checkpoints",
    "evaluation.checkpoint_every": "runtime.checkpoint_every holds for all that writes checkpoints",
    "amax.start_bin": "leave it out; ptq_cli.amax.entropy and .mse take it",
    "amax.stride": "leave it out; ptq_cli.amax.entropy and .mse take it",
    "weights.seed": "leave it out; ptq_cli.quantizers.learn_centers takes a generator",
    "weights.restarts": "leave it out; ptq_cli.quantizers.learn_centers takes it",
    "weights.axis": "leave it out; the layer says its axis",
    "quantization.all_layers": 'write prefer = "size" under [export]',
    "override.percentile": 'write amax = "percentile 99.9", or weight_amax',
    "metric.output": 'write it in brackets behind the metric: metric = "top1[aux]"',
    "data.hop": "write it behind the frame: frame = [576, 512]",
    "runtime.prefetch": "leave it out; one batch is decoded ahead",
    "run.suffix": "leave it out; the suffix follows from the form",
}


def instead_of(key: str) -> str:
    """What to do instead of a former key, or of the keyword argument of that name; empty if there was none.

    Example:
        >>> instead_of("data.hop") == instead_of("hop"), instead_of("amax_stride") != "", instead_of("soon")
        (True, True, '')
    """
    if key in FORMER_KEYS:
        return FORMER_KEYS[key]
    parts = (former.partition(".") for former in FORMER_KEYS)
    names = {f"{PREFIXES.get(section, '')}{field}": f"{section}.{field}" for section, _, field in parts}
    return FORMER_KEYS.get(names.get(key, ""), "")


# Every setting by its key, such as ``"amax.bins"``, in the order of a recipe.
SETTINGS: dict[str, Setting] = {item.key: item for item in _declared()}

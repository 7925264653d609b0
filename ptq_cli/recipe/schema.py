"""Every setting of ptq, with its default: the sections of a recipe in one value.

A section is a dataclass in ``sections``, a key is a field. ``decode`` reads the types, so adding a setting
needs no other change. A field marked as a location holds a path or a ``file.py:callable``; it is relative to
the folder of the file that names it.
"""

from dataclasses import dataclass, field

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
    """All settings, resolved.

    Example:
        >>> Recipe().calibration.method, Recipe().quantization.target
        ('histogram', 'ort-cpu')
    """

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

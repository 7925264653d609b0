"""``[evaluation]``, ``[[metric]]``, ``[gate]`` and ``[tune]``: how a model is judged."""

from dataclasses import dataclass, field
from typing import Any

from ptq_cli.recipe.sections.field_kinds import ENTRY_POINTS, LOCATION, Limit, Location


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

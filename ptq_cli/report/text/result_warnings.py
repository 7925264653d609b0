"""Warnings about a quantized model for which no limit was set: its size, its work, its SQNR."""

from collections.abc import Iterator, Mapping, Sequence

from ptq_cli.core.words import few, format_bytes
from ptq_cli.evaluation.document.gate_result import ReportWarning
from ptq_cli.evaluation.document.measurement import Measurement
from ptq_cli.evaluation.document.report_document import NO_SATURATION, LayerEntry, Saturation
from ptq_cli.plan.left_layers import PLAIN_FLOAT_MODEL
from ptq_cli.plan.planner import ACTIVATIONS_IN_FLOAT
from ptq_cli.qdq.proof.target_faults import Fault
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.report.text.numbers import format_value, share_of_float
from ptq_cli.runtime.narrow_types import has_four_bits

FEWEST_IN_INTEGERS = 0.5  # share of the multiply-accumulates
LOWEST_SQNR_DB = 15.0
BY_MSE = "ptq export --amax mse decides ranges by the mean squared error"
_EXCLUDE = "ptq export --exclude LAYER keeps a layer in float"
ANALYZE = "ptq analyze names the layers that lose most"
_MOST_REASONS = 3
EVERYTHING = "ptq export --prefer size quantizes every layer that the target can"
WORTHLESS = "quantizing it "  # begins the reason of a layer that would save neither bytes nor time
SPEED = "ptq bench shows whether it is faster"
REPAIR = "ptq repair {} makes its sums exact on every processor, without data"
SATURATING = (
    REPAIR.format("FILE"),
    "or run this file on a processor with VNNI",
)
CHOSEN_FLOAT = (
    "computes in float: "  # begins the reason of a layer that an export left in float for time or accuracy
)
BY_LATENCY = "faster in float here"  # begins the reason of a layer that an export placed by latency
_Work = Mapping[str, int | None]  # multiply-accumulates by the name of a layer; None if they are not known


def result_warnings(
    sizes: tuple[int, int],
    layers: Sequence[LayerEntry],
    work: _Work,
    metrics: Sequence[Measurement] = (),
    saturation: Saturation = NO_SATURATION,
    origin: Mapping[str, str] | None = None,
) -> tuple[ReportWarning, ...]:
    """Warnings about a quantized model, each with its reasons and what to try.

    Layers that can saturate where it was measured explain a low SQNR; ``origin`` is the metadata of its file.

    Edge case: A model without multiply-accumulates, or in which none are known, has no share of them in
    integers.
    """
    origin = origin or {}
    hints = (ANALYZE, *(() if origin.get(MetadataKey.AMAX_METHOD) == "mse" else (BY_MSE,)), _EXCLUDE)
    # Other options help no sum that saturates.
    hints = SATURATING if saturation.saturating else hints
    return (
        *saturation_warnings(saturation),
        *_size_warnings(sizes, layers, work),
        *_low_sqnr(metrics, LOWEST_SQNR_DB, hints),
    )


def saturation_warnings(saturation: Saturation, name: str = "the model") -> tuple[ReportWarning, ...]:
    """A warning if layers can saturate on this processor."""
    if not saturation.saturating:
        return ()
    message = (
        f"{len(saturation.saturating):,} of {saturation.layers:,} layers can saturate on this processor, "
        f"which has no VNNI: {name} may compute other numbers here than elsewhere"
    )
    return (ReportWarning("saturating_sums", message, SATURATING),)


def fault_warnings(faults: Sequence[Fault], target: str) -> tuple[ReportWarning, ...]:
    """A warning if a file that was quantized in part breaks rules of its target."""
    if not faults:
        return ()
    texts = few([fault.text for fault in faults], _MOST_REASONS)
    message = f"what was quantized already, and is kept, breaks rules of {target}: {texts}"
    return (ReportWarning("broken_rules", message, ("ptq verify lists them, and fails", PLAIN_FLOAT_MODEL)),)


def arithmetic_warnings(content: bytes) -> tuple[ReportWarning, ...]:
    """A warning if a serialized model is measured in other operators than it holds."""
    if not has_four_bits(content):
        return ()
    message = (
        "ONNX Runtime has no float4e2m1: equivalent operators were measured, which give the same numbers"
    )
    return (ReportWarning("other_operators", message, ("docs/tensorrt.md says what was checked",)),)


def left_out_warnings(left_out: Mapping[str, str]) -> tuple[ReportWarning, ...]:
    """A warning for each output that could not be compared, from the reasons."""
    return tuple(
        ReportWarning(
            "output_left_out",
            f"output '{name}' is not compared, because its size depends on the data: {reason}",
            ("an output before that operator, such as all boxes, can be compared: export the model with it",),
        )
        for name, reason in left_out.items()
    )


def share_in_integers(layers: Sequence[LayerEntry], work: _Work) -> float | None:
    """Share of the known multiply-accumulates that are in integers; None if there are none.

    Example:
        >>> layers = [LayerEntry("a", "Conv", True, ""), LayerEntry("b", "LSTM", False, "")]
        >>> share_in_integers(layers, {"b": 5})
        0.0
    """
    total = sum(work.get(layer.name) or 0 for layer in layers)
    return sum(work.get(layer.name) or 0 for layer in layers if layer.integer) / total if total else None


def _size_warnings(
    sizes: tuple[int, int], layers: Sequence[LayerEntry], work: _Work
) -> Iterator[ReportWarning]:
    before, after = sizes
    # What was asked to read floats, or chosen to, needs no warning.
    layers = [layer for layer in layers if not layer.reason.startswith(ACTIVATIONS_IN_FLOAT)]
    is_chosen = any(CHOSEN_FLOAT in layer.reason for layer in layers)
    in_float = _in_float(layers, work)
    if after > before:
        why = f"; in float: {in_float}" if in_float else ": its weights are small beside their Q/DQ nodes"
        yield ReportWarning(
            "larger_than_float",
            f"the quantized file is larger than the float one: {format_bytes(after)}, "
            f"{share_of_float(after, before)}{why}",
            (SPEED,),
        )
    share = share_in_integers(layers, work)
    if share is not None and share < FEWEST_IN_INTEGERS and not is_chosen:
        yield ReportWarning(
            "few_integers",
            f"{_percent(share)} of the multiply-accumulates are in integers; in float: {in_float}",
            (_hint(layers),),
        )


def _low_sqnr(
    metrics: Sequence[Measurement], lowest_db: float, hints: tuple[str, ...]
) -> Iterator[ReportWarning]:
    for metric in metrics:
        if metric.name.partition("[")[0] == "sqnr_db" and metric.quantized_value < lowest_db:
            value, lowest = (format_value(item, "decibel") for item in (metric.quantized_value, lowest_db))
            message = f"the SQNR of output '{metric.output}' is {value}, below {lowest}"
            yield ReportWarning("low_sqnr", message, hints)


def _in_float(layers: Sequence[LayerEntry], work: _Work) -> str:
    """Reasons why layers that compute are in float, the largest share of the work first."""
    total = sum(work.get(layer.name) or 0 for layer in layers)
    sums: dict[tuple[str, str], int] = {}
    for layer in layers:
        if not layer.integer and (count := work.get(layer.name)):
            # The times of each layer would make a reason of its own.
            key = (layer.op, BY_LATENCY if layer.reason.startswith(BY_LATENCY) else layer.reason)
            sums[key] = sums.get(key, 0) + count
    ordered = sorted(sums, key=lambda key: -sums[key])
    texts = [f"{_percent(sums[key] / total)} {key[0]}: {key[1]}" for key in ordered[:_MOST_REASONS]]
    rest = sum(sums[key] for key in ordered[_MOST_REASONS:])
    return "; ".join([*texts, *([f"{_percent(rest / total)} for other reasons"] if rest else [])])


def _hint(layers: Sequence[LayerEntry]) -> str:
    if any(layer.reason.startswith(BY_LATENCY) for layer in layers):
        return "ptq export --prefer accuracy quantizes them, --prefer size every layer that the target can"
    excluded = any(layer.reason.startswith("kept in float") for layer in layers if not layer.integer)
    if excluded:
        return "ptq export without --exclude and --set override quantizes more layers"
    reasons = "ptq inspect shows the reason of each layer"
    is_left = any(layer.reason.startswith(WORTHLESS) for layer in layers if not layer.integer)
    return f"{reasons}; {EVERYTHING}" if is_left else reasons


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"

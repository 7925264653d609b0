"""What was measured and decided, for tests that say of it only what they are about."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from ptq_cli.core.documents import to_json
from ptq_cli.evaluation.document.gate_result import GateResult, Latency
from ptq_cli.evaluation.document.measurement import Measurement

# Unit, whether it needs labels, whether higher is better; any other metric is a number that needs them.
KINDS = {
    "top1": ("share", True, True),
    "top5": ("share", True, True),
    "mse": ("number", True, False),
    "sqnr_db": ("decibel", False, True),
    "worst_channel_sqnr_db": ("decibel", False, True),
    "cosine": ("number", False, True),
    "top1_agreement": ("share", False, True),
    "max_abs_error": ("number", False, False),
    "perplexity": ("number", False, False),
}


def measurement(name: str, quantized: float, of_float: float | None = None, **more: Any) -> Measurement:
    unit, needs_labels, higher = KINDS.get(name.partition("[")[0], ("number", True, True))
    kind = {"unit": unit, "needs_labels": needs_labels, "higher_is_better": higher}
    return Measurement(
        **{"name": name, "quantized_value": quantized, "float_value": of_float, **kind, **more}
    )


def gate_result(metric: str, kind: str, limit: float, value: float, **more: Any) -> GateResult:
    return GateResult(metric=metric, kind=kind, limit=limit, value=value, **more)  # type: ignore[arg-type]


def latency_of(ratio: float = 0.5, **more: Any) -> Latency:
    """A float model that takes 2 ms."""
    times = {"float_ms": 2.0, "quantized_ms": 2.0 * ratio, "ratio": ratio}
    return Latency(**{**times, "batch_size": 8, "threads": 2, "rounds": 20, **more})


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Validator by a schema of ``docs``, once that was found to be one."""
    schema = json.loads((Path(__file__).parents[1] / "docs" / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def changed_json(document: Any, path: str, value: Any) -> Any:
    """What a document's file holds, with another value at a place such as ``metrics/0/unit``."""
    content = entry = json.loads(to_json(document))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in parents:
        entry = entry[key]
    entry[last] = value
    return content

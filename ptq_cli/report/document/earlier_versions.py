"""Reports of an earlier format version, as this one writes them."""

from typing import Any

from ptq_cli.core.documents.json_values import encode

METRIC_KEYS_OF_2 = ("quantized_interval", "drop_interval", "flips", "quantized_hits")
GATE_KEYS_OF_2 = ("interval", "samples_needed", "percent")
LATENCY_KEYS_OF_4: dict[str, Any] = {"own": None, "own_fault": "", "causes": [], "warnings": []}
METRIC_KEYS_OF_3 = ("float_hits", "output", "pytorch_value", "computed_by")


def upgrade(body: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the content of a report of format version 1 to 9 with the keys of version 9.

    Version 1 knew no intervals, version 2 no class, no metric of the user's and no latency, version 3 no
    channel and no warning, version 4 no cause of a latency and no latency of the user's own file: they are
    null or empty. Before version 5 all were called samples; version 5 knew no ratio,
    version 6 no accuracy level, version 7 no size of the user's own file, and version 8 no saturation. What
    versions 1 and 2 called ``created`` stands in ``times`` now.

    Edge case:
        What is no list of objects is left for the decoder to refuse; a key of a later version in a report of
        an earlier one stays, with its value.

    Example:
        >>> body = {"created": "2026-01-31T12:00:00Z", "metrics": [{"name": "top1"}], "gates": []}
        >>> upgrade(body, 1)["times"], upgrade(body, 1)["metrics"][0]["flips"]
        ({'created': '2026-01-31T12:00:00Z', 'latency': None, 'not_measured': ''}, None)
    """
    if version == 1:
        body = _to_2(body)
    if version < 3:
        body = _to_3(body)
    if version < 4:
        body = _to_4(body)
    if version < 5:
        body = _to_5(body)
    if version < 6:
        body = _to_6(body)
    if version < 7:
        body = {"accuracy_levels": [], **body}
    if version < 8:
        body = _to_8(body)
    return {"saturation": None, **body} if version < 9 else body


def _to_2(body: dict[str, Any]) -> dict[str, Any]:
    return {"baseline": None, **_each(_each(body, "metrics", _metric_of_2), "gates", _gate_of_2)}


def _to_3(body: dict[str, Any]) -> dict[str, Any]:
    upgraded = _each(body, "metrics", _metric_of_3)
    if "created" in upgraded:
        upgraded.setdefault("times", {"created": upgraded.pop("created"), "latency": None})
    return upgraded


def _to_4(body: dict[str, Any]) -> dict[str, Any]:
    return {"warnings": [], **_each(body, "metrics", lambda entry: {"channel": None, **entry})}


def _to_5(body: dict[str, Any]) -> dict[str, Any]:
    body = {"ladder": None, **body}
    if isinstance(evaluation := body.get("evaluation"), dict):
        body = {**body, "evaluation": {"unit": "sample", **evaluation}}
    times = body.get("times")
    if not isinstance(times, dict):
        return body
    upgraded = {**times, "not_measured": times.get("not_measured", "")}
    if isinstance(latency := times.get("latency"), dict):
        upgraded["latency"] = {**LATENCY_KEYS_OF_4, **latency}
    return {**body, "times": upgraded}


def _to_6(body: dict[str, Any]) -> dict[str, Any]:
    return _each(body, "metrics", _metric_of_6)


def _to_8(body: dict[str, Any]) -> dict[str, Any]:
    model = body.get("model")
    return {**body, "model": {"source_bytes": None, **model}} if isinstance(model, dict) else body


def _metric_of_6(entry: dict[str, Any]) -> dict[str, Any]:
    return {"ratio_interval": None, "ratio": _ratio_of(entry), **entry}


def _ratio_of(entry: dict[str, Any]) -> Any:
    try:
        value, before = (float(entry[key]) for key in ("quantized_value", "float_value"))
    except (KeyError, TypeError, ValueError, OverflowError):  # for the decoder to refuse
        return None
    return encode(value / before) if before > 0 and entry.get("higher_is_better") is False else None


def _each(body: dict[str, Any], name: str, upgraded: Any) -> dict[str, Any]:
    entries = body.get(name)
    if not isinstance(entries, list):
        return dict(body)
    return {
        **body,
        name: [upgraded(entry) if isinstance(entry, dict) else entry for entry in entries],
    }


def _metric_of_2(entry: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(METRIC_KEYS_OF_2), **entry}


def _gate_of_2(entry: dict[str, Any]) -> dict[str, Any]:
    # Without an interval there is no doubt: a verdict is what `passed` was.
    verdict = "pass" if entry.get("passed") is True else "fail"
    return {**dict.fromkeys(GATE_KEYS_OF_2), "strict": False, "verdict": verdict, **entry}


def _metric_of_3(entry: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(METRIC_KEYS_OF_3), "arguments": {}, "no_interval": "", "by_class": [], **entry}

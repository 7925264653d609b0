"""Reports of an earlier format version, as this one writes them."""

from typing import Any

METRIC_KEYS = ("quantized_interval", "drop_interval", "flips", "quantized_hits")
GATE_KEYS = ("interval", "samples_needed", "percent")


def upgrade_version_1(body: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a version 1 report with the keys of version 2.

    Version 1 knew no intervals: they are null, and its gates are decided by the value alone.

    Edge case:
        What is no list of objects is left for the decoder to refuse; a key of version 2 in a report of
        version 1 stays, with its value.

    Example:
        >>> upgrade_version_1({"metrics": [{"name": "top1"}], "gates": []})["metrics"][0]["flips"] is None
        True
    """
    upgraded: dict[str, Any] = {"baseline": None, **body}
    for name, upgrade in (("metrics", _metric), ("gates", _gate)):
        entries = body.get(name)
        if isinstance(entries, list):
            upgraded[name] = [upgrade(entry) if isinstance(entry, dict) else entry for entry in entries]
    return upgraded


def _metric(entry: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(METRIC_KEYS), **entry}


def _gate(entry: dict[str, Any]) -> dict[str, Any]:
    # Without an interval there is no doubt: a verdict is what `passed` was.
    verdict = "pass" if entry.get("passed") is True else "fail"
    return {**dict.fromkeys(GATE_KEYS), "strict": False, "verdict": verdict, **entry}

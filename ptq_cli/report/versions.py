"""Reports of an earlier format version, as this one writes them."""

from typing import Any

METRIC_KEYS = ("quantized_interval", "drop_interval", "flips", "quantized_hits")
GATE_KEYS = ("samples_needed",)


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
    keys = {"metrics": METRIC_KEYS, "gates": GATE_KEYS}
    return {name: _with_keys(value, keys[name]) if name in keys else value for name, value in body.items()}


def _with_keys(entries: Any, keys: tuple[str, ...]) -> Any:
    if not isinstance(entries, list):
        return entries
    absent = dict.fromkeys(keys)
    return [{**absent, **entry} if isinstance(entry, dict) else entry for entry in entries]

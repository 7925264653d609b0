"""Settings of a recipe that name code: what would be imported, called, unpickled or run as TorchScript."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ptq_cli.core.entry_points import is_entry_point
from ptq_cli.core.trust import PICKLE, code_key, model_key
from ptq_cli.recipe.schema import SETTINGS

TORCHSCRIPT = "TorchScript"  # The kind of model whose operators are a program.
_OUTPUT = re.compile(r"(.*?:\w+)\[.+\]", re.DOTALL)  # A metric with the output that it judges.


def code_settings(table: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a recipe's resolved tables that name code, by the key of the code.

    Example:
        >>> code_settings({"evaluation": {"data": "eval.npz", "metrics": ["top1", "package.own:f1[boxes]"]}})
        {'package.own:f1': 'evaluation.metrics'}
        >>> code_settings({"metric": [{"metric": "package.own:f1", "arguments": {"mean": True}}]})
        {'package.own:f1 {"mean": true}': 'metric.metric'}
    """
    return dict(_code(table))


def _code(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for item in table.get("metric", ()):
        yield code_key(_OUTPUT.sub(r"\1", item["metric"]), item.get("arguments")), "metric.metric"
    for key, declared in SETTINGS.items():
        section, _, name = key.partition(".")
        if section == "metric" or not (declared.is_location or declared.is_entry_point):
            continue
        value = table.get(section, {}).get(name) or ()
        for text in (value,) if isinstance(value, str) else value:
            code = _OUTPUT.sub(r"\1", text) if declared.is_entry_point else text
            if is_entry_point(code):
                yield code_key(code), key
    model = table.get("model", {})
    if model.get("trust_pickle"):
        yield PICKLE, "model.trust_pickle"
    if model.get("path") is not None:
        yield model_key(model["path"], TORCHSCRIPT), "model.path"

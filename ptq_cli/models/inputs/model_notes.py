"""What ptq has noted of a model's inputs in its metadata, when it prepared the model."""

import json
from typing import Any

import onnx_ir as ir


def noted_table(model: ir.Model, key: str) -> dict[str, Any]:
    """Return the table that a model's metadata have under a key, as JSON.

    Edge case:
        Metadata that hold no such table, because ptq did not write them, are an empty one.

    Example:
        >>> model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
        >>> model.metadata_props["a"], model.metadata_props["b"] = '{"x": 1}', "3"
        >>> noted_table(model, "a"), noted_table(model, "b"), noted_table(model, "c")
        ({'x': 1}, {}, {})
    """
    try:
        found = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

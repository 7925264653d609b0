"""How many rows the tables have that an input's values are indices of: an embedding, a table of positions."""

import onnx_ir as ir

_SAME_VALUES = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")


def rows_of_tables(value: ir.Value) -> int | None:
    """Return the rows of the smallest constant table that a Gather reads at the values of an input.

    Edge case:
        None if there is no such table, or its size is not known.
    """
    found = list(_rows(value, set()))
    return min(found) if found else None


def _rows(value: ir.Value, seen: set[int]) -> list[int]:
    if id(value) in seen:
        return []
    seen.add(id(value))
    found: list[int] = []
    for node, index in value.uses():
        if node.op_type in _SAME_VALUES and index == 0:
            found += _rows(node.outputs[0], seen)
        elif node.op_type == "Gather" and index == 1:
            table, axis = node.inputs[0], node.attributes.get("axis")
            constant = table.const_value if table is not None else None
            rows = constant.shape[0] if constant is not None and len(constant.shape) else None
            if isinstance(rows, int) and (axis is None or axis.as_int() == 0):
                found.append(rows)
    return found

"""Rows of the tables that a model indexes: embeddings, positions; and the errors of indices beyond them."""

import numpy as np
import onnx_ir as ir

_COUNTING = ("Range", "CumSum")  # operators that make positions of a length or a mask
_SAME_VALUES = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze")


def rows_of_tables(value: ir.Value) -> int | None:
    """Return the rows of the smallest constant table that a Gather reads at the values of an input.

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


def longest_sequence(graph: ir.Graph) -> int | None:
    """Return the rows of the smallest constant table that a Gather reads at places which the model counts.

    Such a table holds positions, and a longer sequence does not run. Places are counted if they come from a
    Range or a CumSum, or from the first numbers of a constant 0, 1, 2, … None if there is no such table; a
    table that is read at an input's values is not one.
    """
    found = []
    for node in graph:
        table = node.inputs[0].const_value if node.op_type == "Gather" and node.inputs[0] else None
        axis = node.attributes.get("axis")
        if table is None or len(table.shape) != 2 or (axis is not None and axis.as_int() != 0):
            continue
        most = _counted(node.inputs[1])
        if most is not None:
            found.append(min(most, *table.shape.numpy()[:1]))
    return min(found) if found else None


def _counted(places: ir.Value | None) -> int | None:
    """Return how many places are counted at most; None if they are not counted."""
    waiting, seen, most = [places], set[int](), None
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        producer = value.producer()
        if producer is None:
            if value.const_value is None:
                return None
            if (numbers := _first_numbers(value.const_value)) is not None:
                most = numbers
        elif producer.op_type in _COUNTING:
            most = most or np.iinfo(np.int64).max
        elif producer.op_type != "Shape":
            waiting += producer.inputs
    return most


def _first_numbers(constant: ir.TensorProtocol) -> int | None:
    """Return the length of a constant 0, 1, 2, …; None of another one."""
    if constant.size < 2 or not constant.dtype.is_integer():
        return None
    values = constant.numpy().reshape(-1)
    return int(constant.size) if np.array_equal(values, np.arange(constant.size)) else None


SAID = ("out of data bounds", "index out of range", "indices element out of")
INDEX_HINT = (
    "an index in the data is larger than the model's table: check that the token ids come from the "
    "tokenizer that the model was trained with"
)


def is_index_out_of_range(said: str) -> bool:
    """Tell whether ONNX Runtime or PyTorch complain of an index beyond a table."""
    return any(words in said for words in SAID)

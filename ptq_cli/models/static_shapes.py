"""Close the open dimensions of a model's inputs, for a compiler that takes static shapes alone."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ptq_cli.core.errors import ModelInputError
from ptq_cli.models.batch_axes import noted_axes
from ptq_cli.models.graph_reading import every_value

SAMPLES = "batch"
"""What ``--input-shape`` calls the axis of the samples, whatever a model calls it."""


def closed_sizes(model: ir.Model, shapes: Mapping[str, Sequence[int]], target: str) -> dict[str, int]:
    """Return the size of each open dimension of a model's inputs, by its name.

    Args:
        model: whose inputs have names for what is open.
        shapes: of inputs, by name; ``"batch"`` is the size of all axes of samples.
        target: for messages.

    Raises:
        ModelInputError: the shapes leave one open, or have other sizes than the model.

    Example:
        >>> text = '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
        >>> model = ir.from_onnx_text(text)
        >>> closed_sizes(model, {"batch": [1]}, "qnn"), closed_sizes(model, {"x": [4]}, "qnn")
        ({'n': 1}, {'n': 4})
    """
    found: dict[str, int] = {}
    axes, names = noted_axes(model), [value.name or "" for value in model.graph.inputs]
    batch = shapes.get(SAMPLES) if SAMPLES not in names else None
    for value in model.graph.inputs:
        given, samples = shapes.get(value.name or ""), axes.get(value.name or "", 0)
        for axis, size in enumerate(value.shape or ()):
            if isinstance(size, int):
                continue
            name = size.value or ""
            if given is not None and len(given) == len(value.shape or ()):
                found.setdefault(name, given[axis])
            elif batch is not None and axis == samples:
                found.setdefault(name, batch[0])
            else:
                shape = ",".join(
                    "1" if not isinstance(item, int) else str(item) for item in value.shape or ()
                )
                asked = f"{SAMPLES}=1" if axis == samples else f"{value.name}={shape}"
                raise ModelInputError(
                    f"target '{target}' takes static shapes, and axis {axis} of input '{value.name}' is open",
                    hint=f"say its size in the quantized model: --input-shape {asked}",
                )
    return found


def close_dimensions(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Give open dimensions their sizes, wherever their names stand.

    Args:
        model: is changed in place.
        sizes: by the name of the dimension.
    """
    for value in every_value(model.graph):
        if value.shape is None or value.shape.is_static():
            continue
        closed = [
            size if isinstance(size, int) else sizes.get(size.value or "", size) for size in value.shape
        ]
        value.shape = ir.Shape(closed)

"""Inputs that are made up, for what needs no data: how long a model takes, what its kernels compute."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptq_cli.calibdata.bind import fixed_batch_size
from ptq_cli.core.errors import DataShapeError, ModelInputError
from ptq_cli.core.tensors import Array, TensorSpec
from ptq_cli.models.loading.onnx_source import input_specs
from ptq_cli.plan.bound_shapes import bind_shapes

SEED = 0
MADE_UP = "made-up inputs"
LARGEST_INDEX = 2
"""Integers are 0 or 1: a table of words has at least two rows."""


def own_batch_size(inputs: Sequence[TensorSpec]) -> int | None:
    """Return how many samples a run of a model takes, where its inputs say so; None if any may be.

    Edge case:
        1 where the inputs fix different ones: their first axes are no samples, and a run is one.

    Example:
        >>> x, table = TensorSpec("x", np.dtype("f4"), (4, 3)), TensorSpec("table", np.dtype("f4"), (9, 3))
        >>> own_batch_size([x]), own_batch_size([x, table])
        (4, 1)
    """
    try:
        return fixed_batch_size(inputs)
    except DataShapeError:
        return 1


def made_up_batches(
    model: ir.Model, batch: int, count: int = 1, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[dict[str, Array]]:
    """Return seeded batches: Gaussian floats, and 0 or 1 for integers and booleans.

    Sizes that the model leaves open are ``batch`` for the axis of the samples, or as ``bind_shapes`` assumes
    them.

    Args:
        model: the model, with symbolic sizes.
        batch: samples a batch; a model that fixes another keeps its own.
        count: how many batches.
        shapes: of inputs, by name; their first axis counts.

    Raises:
        ModelInputError: the rank of an input is not known.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[n, 3] x) => (float[n, 3] y) { y = Neg(x) }'''
        >>> import onnx
        >>> [batch["x"].shape for batch in made_up_batches(ir.from_proto(onnx.parser.parse_model(text)), 4)]
        [(4, 3)]
    """
    bound, given = bind_shapes(model, shapes).shapes, shapes or {}
    for spec in input_specs(model):
        if spec.name not in bound:
            raise ModelInputError(
                f"the rank of input '{spec.name}' is not known",
                hint=f"pass --input-shape {spec.name}=1,3,224,224",
            )
    random = np.random.default_rng(SEED)
    batches: list[dict[str, Array]] = []
    for _ in range(count):
        arrays: dict[str, Array] = {}
        for spec in input_specs(model):
            sizes = [size or 0 for size in bound[spec.name]]
            axis = spec.samples_axis
            if spec.name not in given and axis is not None and spec.shape[axis] is None:
                sizes[axis] = batch
            is_float = spec.dtype.kind == "f"
            values = random.standard_normal(sizes) if is_float else random.integers(0, LARGEST_INDEX, sizes)
            arrays[spec.name] = np.asarray(values).astype(spec.dtype)
        batches.append(arrays)
    return batches

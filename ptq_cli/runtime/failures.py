"""Errors of ONNX Runtime, with what to do about them."""

from ptq_cli.core.errors import RuntimeFailedError
from ptq_cli.models.index_tables import INDEX_HINT, is_index_out_of_range

SAID_LIMIT = 400  # characters of ONNX Runtime's message that are passed on
NO_ARRAY = "numpy has no bfloat16: export the model with outputs in float32"
OTHER_SIZE = (
    "check that the model accepts inputs of this size; try a batch of 1, or with text a shorter text.window"
)
NO_MEMORY = ("Failed to allocate memory", "bad allocation", "bad_alloc")
LESS_MEMORY = "there is not enough memory: pass smaller batches, such as --set data.batch_size=4"
NO_KERNEL = (
    "it has no kernel for this operator in these types and this opset: most kernels are for float32; export "
    "float64 in float32, or write the operator with others"
)
UNKNOWN_OPERATOR = "run `ptq inspect` to see its layers; the model may have an operator of a custom domain"


def failed_load(error: Exception) -> RuntimeFailedError:
    """Return the error for a model that ONNX Runtime did not open.

    Example:
        >>> print(failed_load(RuntimeError("NOT_IMPLEMENTED: Add in bfloat16")).message)
        ONNX Runtime cannot load the model: NOT_IMPLEMENTED: Add in bfloat16
    """
    return RuntimeFailedError(
        f"ONNX Runtime cannot load the model: {_said(error)}",
        hint=NO_KERNEL if "NOT_IMPLEMENTED" in str(error) else UNKNOWN_OPERATOR,
    )


def failed_run(error: Exception) -> RuntimeFailedError:
    """Return the error for a batch that ONNX Runtime did not compute.

    Example:
        >>> failed_run(MemoryError("std::bad_alloc")).hint
        'there is not enough memory: pass smaller batches, such as --set data.batch_size=4'
    """
    return RuntimeFailedError(f"ONNX Runtime failed on a batch: {_said(error)}", hint=_hint(str(error)))


def _hint(said: str) -> str:
    if "Numpy type" in said:
        return NO_ARRAY
    if is_index_out_of_range(said):
        return INDEX_HINT
    if any(words in said for words in NO_MEMORY):
        return LESS_MEMORY
    return OTHER_SIZE


def _said(error: Exception) -> str:
    # Its messages have several lines, and which sizes did not fit stands on a later one.
    return " ".join(str(error).split())[:SAID_LIMIT]

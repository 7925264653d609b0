"""Indices beyond a table, such as token ids beyond an embedding: how a runtime says it, and what to do."""

SAID = ("out of data bounds", "index out of range", "indices element out of")
INDEX_HINT = (
    "an index in the data is larger than the model's table: check that the token ids come from the "
    "tokenizer that the model was trained with"
)


def is_index_out_of_range(said: str) -> bool:
    """Tell whether ONNX Runtime or PyTorch complain of an index beyond a table.

    Example:
        >>> is_index_out_of_range("IndexError: index out of range in self")
        True
    """
    return any(words in said for words in SAID)

"""The integers of a large model go into the file of its constants as each weight is decided."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ptq_cli.core.tensors import Array
from ptq_cli.models.files.constants_file import ConstantsFile
from ptq_cli.models.files.stored import lies_apart
from ptq_cli.qdq.write.pair_nodes import packed_type
from ptq_cli.qdq.write.weights.weight_quantizer import BYTE, HALF_BYTE, StoredWeight

Keep = Callable[[StoredWeight, str], StoredWeight]
"""Given what is stored of a weight and the weight's name, returns the same from where it is kept."""
PART = 1 << 20
"""Integers that are packed at once: whole bytes of them."""


def as_it_is(stored: StoredWeight, _name: str) -> StoredWeight:
    """Return a weight itself, which stays in memory.

    Example:
        >>> as_it_is(StoredWeight(integers=np.zeros(1, np.int8)), "w").array()
        array([0], dtype=int8)
    """
    return stored


class StreamedWeights:
    """Writes large integers into the file that the quantized model will have them in.

    Edge case:
        A weight whose integers are stored in another form, as 4-bit floats are, stays in memory.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = ConstantsFile(Path(tempfile.mkdtemp()), "m.onnx")
        >>> weight = StoredWeight(integers=np.full((256, 256), -3, np.int8), bits=4)
        >>> kept = StreamedWeights(file)(weight, "w")
        >>> file.path.stat().st_size, kept.shape, bool((kept.array() == -3).all())
        (32768, (256, 256), True)
        >>> file.remove()
    """

    def __init__(self, file: ConstantsFile) -> None:
        self._file = file

    def __call__(self, stored: StoredWeight, name: str) -> StoredWeight:
        """Return a weight whose integers are in the file, if they are large.

        Raises:
            OutputFileError: the disk is full.
        """
        array = stored.integers
        if isinstance(array, ir.ExternalTensor) or stored.tensor_scale is not None:
            return stored
        if not lies_apart(array.size * stored.bits // BYTE):
            return stored
        is_packed = stored.bits <= HALF_BYTE
        dtype = packed_type(array, stored.bits) if is_packed else ir.DataType.from_numpy(array.dtype)
        return replace(
            stored, integers=self._file.write(_blocks(array, dtype, is_packed), dtype, array.shape, name)
        )


def _blocks(array: Array, dtype: ir.DataType, is_packed: bool) -> Iterator[bytes | memoryview]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not is_packed:
        yield flat.view(np.uint8).data
        return
    for start in range(0, flat.size, PART):
        yield ir.Tensor(flat[start : start + PART].astype(dtype.numpy()), dtype=dtype).tobytes()

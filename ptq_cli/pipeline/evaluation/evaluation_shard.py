"""One part of an evaluation as a file: what each batch added to the metrics, and what it is a part of.

It is a safetensors file, whose header says which models, data and settings were evaluated. Nothing in it is
pickled; ranks of ``torchrun`` send one another the same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ptq_cli.collectors.share import Share, share_to_table, table_to_share
from ptq_cli.core.documents import decode, encode, strict_json
from ptq_cli.core.errors import EvaluationFileError, ReportError, first_line
from ptq_cli.core.read_files import read_file
from ptq_cli.report.document.report_document import SampleUnit
from ptq_cli.report.evaluation.sample_axes import Axis, MeasuredBatch, PackedKey, pack_states, unpack_states
from ptq_cli.report.metrics.base import State

FORMAT = "ptq.evaluation_shard"
FORMAT_VERSION = 1
HEADER_KEY = "ptq"
NUMBERS, SAMPLES = "batch numbers", "batch samples"
AGAIN = "run ptq evaluate --shard for it again, or copy the file again"
DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}


@dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """What a part of an evaluation is of: the same for all parts.

    Attributes:
        identity: models, data, metrics and settings, each under the name that a message gives it.
        recipe: all settings as TOML, with paths from the run directory.
        models: the quantized models' files, from the run directory.
        thumbnails: whether the samples that change their class are shown.
        data_digest: of the evaluation data.
        unit: what is counted as one.
        class_names: of the data, by label.
        metrics: names of the metrics that need labels.
        axes: where the samples of each output are.
    """

    identity: dict[str, str]
    recipe: str
    models: tuple[str, ...]
    thumbnails: bool
    data_digest: str
    unit: SampleUnit
    class_names: tuple[str, ...]
    metrics: tuple[str, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True, kw_only=True)
class EvaluationShard:
    """One part of an evaluation.

    Attributes:
        facts: what it is a part of.
        share: which part.
        batches: what was measured on each batch.
        watched: what was noted besides: the samples that change their class.
    """

    facts: ShardFacts
    share: Share
    batches: tuple[MeasuredBatch, ...]
    watched: State

    @property
    def samples(self) -> int:
        """How many samples it has seen."""
        return sum(batch.samples for batch in self.batches)


@dataclass(frozen=True)
class _Header:
    facts: ShardFacts
    packed: tuple[PackedKey, ...]
    watched: tuple[str, ...]


def shard_bytes(shard: EvaluationShard) -> bytes:
    """Return a shard as the content of a file; the same shard gives the same bytes."""
    packed, arrays = pack_states([batch.state for batch in shard.batches])
    arrays |= {f"watched.{index}": array for index, array in enumerate(shard.watched.values())}
    arrays[NUMBERS] = np.array([batch.number for batch in shard.batches], np.int64)
    arrays[SAMPLES] = np.array([batch.samples for batch in shard.batches], np.int64)
    header: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "share": share_to_table(shard.share),
        "content": encode(_Header(shard.facts, packed, tuple(shard.watched))),
    }
    header["checksum"] = _checksum(header, arrays)
    content: bytes = save(arrays, metadata={HEADER_KEY: json.dumps(header, sort_keys=True)})
    return content


def load_shard(path: Path) -> EvaluationShard:
    """Read a shard.

    Raises:
        InputFileError: the file is missing or unreadable.
        EvaluationFileError: it is damaged, no shard of an evaluation, or of another format version.
    """
    return parse_shard_bytes(read_file(path, "shard of an evaluation"), str(path))


def parse_shard_bytes(content: bytes, name: str) -> EvaluationShard:
    """Return the shard that a file's content holds.

    Args:
        content: of a file, or whatever stands in its place.
        name: of the file, for messages.

    Raises:
        EvaluationFileError: it is damaged, no shard of an evaluation, or of another format version.
    """
    try:
        return _parse(content, name)
    # A deep JSON raises RecursionError; safetensors, numpy and the checks raise the others.
    except (SafetensorError, ValueError, KeyError, RecursionError, ReportError) as error:
        reason = error.message if isinstance(error, ReportError) else first_line(error)
        raise EvaluationFileError(f"'{name}' is damaged: {reason}", hint=AGAIN) from error


def _parse(content: bytes, name: str) -> EvaluationShard:
    items = deserialize(content)  # type: ignore[no-untyped-call]
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    table = strict_json(metadata.get(HEADER_KEY, "{}").encode())
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise EvaluationFileError(
            f"'{name}' is not a shard of an evaluation",
            hint="`ptq evaluate --shard 2/8` writes one: evaluation.shard-2-of-8.safetensors",
        )
    if table.get("format_version") != FORMAT_VERSION:
        raise EvaluationFileError(
            f"'{name}' has format version {str(table.get('format_version'))[:40]}, this version of ptq reads "
            f"{FORMAT_VERSION}",
            hint="evaluate the shard again, or use the version of ptq that wrote it",
        )
    arrays = {key: _array(item) for key, item in items}
    if table.pop("checksum", None) != _checksum(table, arrays):
        raise ValueError("its checksum is wrong")
    header: _Header = decode(_Header, table["content"], "content")
    share = table_to_share(table["share"])
    if share is None or len(share.batches) != 1:
        raise ValueError("it does not say which shard it is")
    return EvaluationShard(
        facts=header.facts,
        share=share,
        batches=_batches(header, arrays, share),
        watched={key: arrays[f"watched.{index}"] for index, key in enumerate(header.watched)},
    )


def _batches(
    header: _Header, arrays: Mapping[str, npt.NDArray[Any]], share: Share
) -> tuple[MeasuredBatch, ...]:
    numbers, samples = (arrays[name].tolist() for name in (NUMBERS, SAMPLES))
    ((shard, count),) = share.batches.items()
    if numbers != [place * share.count + shard - 1 for place in range(count)]:
        raise ValueError("its batches are not those of its shard")
    if len(samples) != count or not all(1 <= size <= share.batch_size for size in samples):
        raise ValueError("its batches have no or too many samples")
    states = unpack_states(header.packed, arrays, count)
    return tuple(MeasuredBatch(*batch) for batch in zip(numbers, samples, states, strict=True))


def _array(item: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype, shape = item["dtype"], item["shape"]
    if dtype not in DTYPES or len(shape) != 1:
        raise ValueError(f"an array is {dtype}{shape}")
    return np.frombuffer(item["data"], DTYPES[dtype])


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(arrays):
        digest.update(key.encode())
        digest.update(arrays[key].tobytes())
    return digest.hexdigest()

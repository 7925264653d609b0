"""What was made of a folder, as a value and as ``folder.json``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptq_cli.pipeline.run.run_directory import RunDirectory
from ptq_cli.pipeline.run_quantize import QuantizationResult

FORMAT_VERSION = 1
SUMMARY = "folder.json"


@dataclass(frozen=True, kw_only=True)
class QuantizedFolderFile:
    """One file of a folder, quantized.

    Attributes:
        file: the float model's path in the folder.
        output: where the quantized model is.
        run: its run directory.
        float_bytes, bytes: sizes of both, each with the constants that it shares with others.
        result: what was done; None if nothing of the model can be quantized, and it was copied.
        reason: why it was copied.
    """

    file: Path
    output: Path
    run: RunDirectory
    float_bytes: int
    bytes: int
    result: QuantizationResult | None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether no limit failed."""
        evaluation = self.result.evaluation if self.result is not None else None
        return evaluation is None or evaluation.report.verdict != "fail"


@dataclass(frozen=True, kw_only=True)
class FolderResult:
    """The result of ``quantize`` for a folder.

    Attributes:
        folder, output: where the float and the quantized models are.
        run: where the summary is; each file has a run directory in it.
        suffix: of the quantized files' names.
        files: the models.
        carried: configurations and tokenizers that lie in the output, too.
        left_out: files that were quantized already.
        float_bytes, bytes: of all models with their constants, which count once if files share them.
        shared: number of constants that several quantized models read from one file.
        saved: bytes that copies of these would take.
    """

    folder: Path
    output: Path
    run: RunDirectory
    suffix: str
    files: tuple[QuantizedFolderFile, ...]
    carried: tuple[Path, ...]
    left_out: tuple[Path, ...]
    float_bytes: int
    bytes: int
    shared: int
    saved: int

    @property
    def summary(self) -> Path:
        """The summary for programs."""
        return self.run.path / SUMMARY

    @property
    def passed(self) -> bool:
        """Whether no limit failed for any file."""
        return all(item.passed for item in self.files)

    def values(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "folder": str(self.folder),
            "output": str(self.output),
            "suffix": self.suffix,
            "float_bytes": self.float_bytes,
            "bytes": self.bytes,
            "shared_constants": self.shared,
            "saved_bytes": self.saved,
            "files": [_file_values(item) for item in self.files],
            "carried": [item.as_posix() for item in self.carried],
            "left_out": [item.as_posix() for item in self.left_out],
        }

    def to_json(self) -> str:
        """Return ``folder.json``."""
        return f"{json.dumps(self.values(), indent=2)}\n"


def _file_values(item: QuantizedFolderFile) -> dict[str, Any]:
    export = item.result.export if item.result is not None else None
    layers = export.plan.layers if export is not None else ()
    evaluation = item.result.evaluation if item.result is not None else None
    return {
        "file": item.file.as_posix(),
        "output": str(item.output),
        "run": str(item.run.path) if item.result is not None else None,
        "float_bytes": item.float_bytes,
        "bytes": item.bytes,
        "layers": len(layers) if export is not None else None,
        "integer_layers": sum(layer.quantized for layer in layers) if export is not None else None,
        "quantized_weights": len({site.node for site in export.plan.weights}) if export is not None else None,
        "weights_decided_before": export.taken if export is not None else None,
        "copied_because": item.reason or None,
        "verdict": evaluation.report.verdict if evaluation is not None else None,
    }

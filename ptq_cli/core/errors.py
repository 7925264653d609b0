"""The errors a user can meet, each with a stable code.

One class per thing that can be wrong. The class carries the code and, in its docstring, the text of
its section in ``docs/errors.md`` (generated; ``make docs``). The instance carries one line that says
what is wrong, what was found and what was wanted, and where; and a hint that says what to do.
"""

from collections.abc import Iterable
from typing import ClassVar


class PtqError(Exception):
    """Base of every error that is the input's fault, not a bug in ptq.

    Attributes:
        code: stable identifier, such as ``PTQ-DATA-002``.
        exit_status: what the command exits with.
        message: one line.
        hint: what to do about it, or an empty string.

    Example:
        >>> error = DataShapeError("input 'x' has shape (3, 8)", hint="pass --data with shape (3, 9)")
        >>> print(error)
        PTQ-DATA-003: input 'x' has shape (3, 8)
        hint: pass --data with shape (3, 9)
    """

    code: ClassVar[str] = "PTQ-000"
    exit_status: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


class UsageError(PtqError):
    """A flag or argument of the command line, or an argument of the Python API, cannot be used."""

    code = "PTQ-USAGE-001"


class InputFileError(PtqError):
    """A file or folder that was named is missing, unreadable, or a folder where a file is wanted."""

    code = "PTQ-FILE-001"


class OutputFileError(PtqError):
    """The output cannot be written: its folder is read-only, full, or cannot be made. Nothing was changed."""

    code = "PTQ-FILE-002"


class RecipeSyntaxError(PtqError):
    """The recipe is no valid TOML, or not text."""

    code = "PTQ-RECIPE-001"


class RecipeKeyError(PtqError):
    """The recipe has a key that ptq does not know; the message names the nearest known key."""

    code = "PTQ-RECIPE-002"


class RecipeValueError(PtqError):
    """A setting has the wrong type or a value outside its range, in a recipe or from a flag."""

    code = "PTQ-RECIPE-003"


class UnknownNameError(PtqError):
    """A metric, method, target, device, preset or tensor that does not exist; the nearest name is shown."""

    code = "PTQ-RECIPE-004"


class EntryPointError(PtqError):
    """A ``file.py:callable`` cannot be imported, is not there, is not callable, or raised."""

    code = "PTQ-ENTRY-001"


class ModelFormatError(PtqError):
    """The file is no model that ptq can read: text, a truncated archive, an unknown format."""

    code = "PTQ-MODEL-001"


class PickleError(PtqError):
    """The model is a pickled module, and unpickling can run any code; it needs ``--trust-pickle``."""

    code = "PTQ-MODEL-002"


class ArchitectureError(PtqError):
    """A state dict needs ``--arch``, or what ``--arch`` builds does not fit the checkpoint."""

    code = "PTQ-MODEL-003"


class ExportError(PtqError):
    """PyTorch cannot turn the model into a graph; the message names the layer it failed at."""

    code = "PTQ-MODEL-004"


class InvalidOnnxError(PtqError):
    """The ONNX model fails the checker, its opset is too old or too new, or a constant holds NaN or Inf."""

    code = "PTQ-MODEL-005"


class ParityError(PtqError):
    """The float ONNX model does not compute what its source computes on the first batch."""

    code = "PTQ-MODEL-006"


class ModelInputError(PtqError):
    """The model's inputs are not known: data, or ``--input-shape``, must say what they look like."""

    code = "PTQ-MODEL-007"


class NotQuantizedError(PtqError):
    """The model holds no QuantizeLinear and no DequantizeLinear, and a quantized one is wanted."""

    code = "PTQ-MODEL-008"


class DataFormatError(PtqError):
    """The data is in no format that ptq reads, or the file is damaged or holds Python objects."""

    code = "PTQ-DATA-001"


class DataNameError(PtqError):
    """The data names no array for one of the model's inputs, or one that the model does not have."""

    code = "PTQ-DATA-002"


class DataShapeError(PtqError):
    """An array's rank or shape does not fit the model's input."""

    code = "PTQ-DATA-003"


class DataTypeError(PtqError):
    """An array's dtype does not fit the model's input."""

    code = "PTQ-DATA-004"


class EmptyDataError(PtqError):
    """The data set has no sample, or no data set was named where one is needed."""

    code = "PTQ-DATA-005"


class LabelError(PtqError):
    """A metric needs labels and the data has none, or a label lies outside the classes."""

    code = "PTQ-DATA-006"


class DamagedSampleError(PtqError):
    """One sample cannot be decoded, such as a corrupt JPEG; the message names it."""

    code = "PTQ-DATA-007"


class NonFiniteDataError(PtqError):
    """The data holds NaN or Inf; the message names the input and the sample."""

    code = "PTQ-DATA-008"


class NonFiniteActivationError(PtqError):
    """The model computed NaN or Inf; the message names the first tensor and the sample."""

    code = "PTQ-CALIB-001"


class CalibrationFileError(PtqError):
    """``calibration.safetensors`` is damaged, or of a format version that this ptq does not read."""

    code = "PTQ-CALIB-002"


class StaleCalibrationError(PtqError):
    """The calibration was made with another model or another recipe than the one at hand."""

    code = "PTQ-CALIB-003"


class MissingStatisticError(PtqError):
    """The amax method needs statistics that the calibration did not keep, such as a histogram."""

    code = "PTQ-CALIB-004"


class IncompleteCalibrationError(PtqError):
    """The calibration is a part: shards are missing, or it is the checkpoint of a run that did not end."""

    code = "PTQ-CALIB-005"


class ActivationAxisError(PtqError):
    """An axis of ``--activation-axis`` is not there, is that of the samples, or changes its length."""

    code = "PTQ-CALIB-006"


class MergeError(PtqError):
    """The runs to be merged are no shards of one calibration; the message names what differs."""

    code = "PTQ-MERGE-001"


class OverlappingShardsError(PtqError):
    """Two of the runs to be merged hold the same shard, which would be counted twice."""

    code = "PTQ-MERGE-002"


class RanksError(PtqError):
    """The processes of one calibration lost one another, or what they were told contradicts itself."""

    code = "PTQ-RANKS-001"


class QuantizerValueError(RecipeValueError, ValueError):
    """A quantizer was given a value that it cannot work with: NaN, a negative amax, a scale of 0."""

    code = "PTQ-QUANT-001"


class QuantizerTypeError(UsageError, TypeError):
    """A quantizer was given a thing of another kind: an integer tensor, negative values if it is unsigned."""

    code = "PTQ-QUANT-002"


class QuantizerShapeError(UsageError, RuntimeError):
    """A quantizer's parameter does not fit the tensor's shape, or the tensor is empty and must not be."""

    code = "PTQ-QUANT-003"


class AxisError(QuantizerValueError, IndexError):
    """A tensor has no such axis, or the same axis is named twice."""

    code = "PTQ-QUANT-004"


class UnsupportedFormatError(UsageError, NotImplementedError):
    """A number format that no quantizer of ptq has, such as the float8 format E5M2."""

    code = "PTQ-QUANT-005"


class MissingStageError(PtqError):
    """A stage was asked for before the one that it needs: export before calibrate, say."""

    code = "PTQ-RUN-001"


class NothingToQuantizeError(PtqError):
    """The target quantizes none of the model's layers; the message says why."""

    code = "PTQ-PLAN-001"


class TargetOverrideError(PtqError):
    """A setting asks for what the target cannot do, such as uint8 of TensorRT; the message names both."""

    code = "PTQ-PLAN-002"


class RuntimeFailedError(PtqError):
    """ONNX Runtime cannot load or run the model; the message carries what it said."""

    code = "PTQ-RUNTIME-001"


class MemoryLimitError(PtqError):
    """``--max-memory`` is less than a sample and a tensor at a time take; the message says how much."""

    code = "PTQ-RUNTIME-002"


class DeviceError(PtqError):
    """``--device`` cannot be used: no CUDA in ONNX Runtime or PyTorch, no such GPU, or missing libraries."""

    code = "PTQ-RUNTIME-003"


class ReportError(PtqError):
    """The report is damaged, of a newer format version, or no report at all."""

    code = "PTQ-REPORT-001"


class AnalysisError(PtqError):
    """The analysis is damaged, of a newer format version, or no analysis at all."""

    code = "PTQ-ANALYSIS-001"


class GateError(PtqError):
    """A gate cannot be decided: the report lacks the metric, or the limit is no number."""

    code = "PTQ-GATE-001"


class BaselineError(PtqError):
    """``--baseline`` names a report of another model, or one that was measured on other data."""

    code = "PTQ-GATE-002"


class MetricError(PtqError):
    """A metric does not fit what the model computes, such as top-1 on an output without classes."""

    code = "PTQ-METRIC-001"


def did_you_mean(name: str, known: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or an empty string.

    Example:
        >>> did_you_mean("mehtod", ["method", "data"])
        " (did you mean 'method'?)"
        >>> did_you_mean("zzz", ["method", "data"])
        ''
    """
    from difflib import get_close_matches

    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raise if ``name`` is not among the known names.

    Args:
        what: the kind of name, such as ``"metric"``.
        name: what the user wrote.
        known: the names there are.

    Raises:
        UnknownNameError: it is not; the message has the nearest name, the hint all of them.

    Example:
        >>> require_known("metric", "top2", ["top1", "top5"])
        Traceback (most recent call last):
        ...
        ptq_cli.core.errors.UnknownNameError: PTQ-RECIPE-004: unknown metric 'top2' (did you mean 'top5'?)
        hint: known: top1, top5
    """
    names = list(known)
    if name not in names:
        raise UnknownNameError(
            f"unknown {what} '{name}'{did_you_mean(name, names)}", hint=f"known: {', '.join(names)}"
        )


def first_line(error: BaseException, limit: int = 160) -> str:
    r"""Return the first line of what another library said, cut to ``limit`` characters.

    Example:
        >>> first_line(ValueError("bad\nlong story"))
        'bad'
        >>> first_line(KeyError())
        'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:limit] if lines else type(error).__name__

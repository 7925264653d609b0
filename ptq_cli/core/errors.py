"""The errors a user can meet, each with a stable code.

One class per thing that can be wrong. The class carries the code and, in its docstring, the text of its
section in ``docs/errors.md`` (generated; ``make docs``). The instance carries one line that says what is
wrong: what was found, what was expected, and where; and a hint that says what to do.

Programs import the classes from here, as ``docs/stability.md`` promises; so do the other rooms.
"""

from typing import ClassVar

LONGEST_TEXT = 4000
"""Characters of a message or a hint: a damaged file may have names of any length."""


def cut(text: str) -> str:
    """Return a text, without its middle if it is longer than ``LONGEST_TEXT``.

    Example:
        >>> cut("short"), len(cut("long" * 2000)) < LONGEST_TEXT
        ('short', True)
    """
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT // 2]} … {text[-LONGEST_TEXT // 4 :]}"


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


# The base of every error that a user can meet: a code, one line that says what is wrong, and a hint.


class PtqError(Exception):
    """Base of every error that is the input's fault, not a bug in ptq.

    Attributes:
        code: stable identifier, such as ``PTQ-DATA-002``.
        exit_status: what the command exits with.
        message: one line.
        hint: what to do about it, or an empty string.

    Example:
        >>> from ptq_cli.core.errors import DataShapeError
        >>> error = DataShapeError("input 'x' has shape (3, 8)", hint="pass --data with shape (3, 9)")
        >>> print(error)
        PTQ-DATA-003: input 'x' has shape (3, 8)
        hint: pass --data with shape (3, 9)
    """

    code: ClassVar[str] = "PTQ-000"
    exit_status: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = cut(" ".join(message.split()))
        self.hint = cut(" ".join(hint.split()))

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


# A calibration cannot be made, used or merged; likewise the parts of an evaluation.


class NonFiniteActivationError(PtqError):
    """The model computed NaN or Inf; the message names the first tensor and the sample."""

    code = "PTQ-CALIB-001"


class CalibrationFileError(PtqError):
    """``calibration.safetensors`` is damaged, or of a format version that this ptq does not read."""

    code = "PTQ-CALIB-002"


class StaleCalibrationError(PtqError):
    """The calibration was made with a different model or a different recipe."""

    code = "PTQ-CALIB-003"


class MissingStatisticError(PtqError):
    """An amax method, or ``ptq drift``, needs statistics that the calibration did not keep."""

    code = "PTQ-CALIB-004"


class IncompleteCalibrationError(PtqError):
    """The calibration is incomplete: shards are missing, or it is the checkpoint of an interrupted run."""

    code = "PTQ-CALIB-005"


class ActivationAxisError(PtqError):
    """An axis of ``activation_axis`` does not exist, is the axis of the samples, or changes its length."""

    code = "PTQ-CALIB-006"


class EvaluationFileError(PtqError):
    """A shard of an evaluation is damaged, or of a format version that this ptq does not read."""

    code = "PTQ-EVAL-001"


class IncompleteEvaluationError(PtqError):
    """The evaluation is incomplete: shards are missing, or one is not finished."""

    code = "PTQ-EVAL-002"


class MergeError(PtqError):
    """The runs to merge are not shards of the same calibration or evaluation; the message says why."""

    code = "PTQ-MERGE-001"


class OverlappingShardsError(PtqError):
    """Two of the runs to merge hold the same shard, which would be counted twice."""

    code = "PTQ-MERGE-002"


class RanksError(PtqError):
    """The processes of a command lost contact, or their environment variables contradict each other."""

    code = "PTQ-RANKS-001"


class MissingStageError(PtqError):
    """A command was run before the one that it depends on, such as export before calibrate."""

    code = "PTQ-RUN-001"


# Data or texts do not fit the model.


class DataFormatError(PtqError):
    """The data is not in a format that ptq reads, or the file is damaged or holds Python objects."""

    code = "PTQ-DATA-001"


class DataNameError(PtqError):
    """The data has no array for one of the model's inputs, or an array that is not one of its inputs."""

    code = "PTQ-DATA-002"


class DataShapeError(PtqError):
    """An array's rank or shape does not fit the model's input."""

    code = "PTQ-DATA-003"


class DataTypeError(PtqError):
    """An array's dtype does not fit the model's input."""

    code = "PTQ-DATA-004"


class BatchAxisError(PtqError):
    """``--batch-axis`` names neither an input nor an output of the model, or an axis that is not there."""

    code = "PTQ-DATA-009"


class CarryError(PtqError):
    """An output cannot be the next step's input: names, types or shapes do not fit."""

    code = "PTQ-DATA-010"


class EmptyDataError(PtqError):
    """The data set has no samples, or no data was given to a command that needs it."""

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


class TokenizerError(PtqError):
    """``--tokenizer`` is not a tokenizer, or does not fit the model: its tokens are not in the embedding."""

    code = "PTQ-TEXT-001"


class SequenceLengthError(PtqError):
    """A window is longer than the model takes, or the text is shorter than one window."""

    code = "PTQ-TEXT-002"


class CacheInputError(PtqError):
    """An input that holds a key-value cache has no shape that an empty cache could have."""

    code = "PTQ-TEXT-003"


# Reports, metrics, gates, budgets and recovery: nothing can be judged or gained by them.


class ReportError(PtqError):
    """The report is damaged, has another format version, or is not a report at all."""

    code = "PTQ-REPORT-001"


class AnalysisError(PtqError):
    """The analysis is damaged, has another format version, or is not an analysis at all."""

    code = "PTQ-ANALYSIS-001"


class RecoveryError(PtqError):
    """There are too few samples to recover accuracy from: some have to be held out."""

    code = "PTQ-RECOVERY-001"


class TuneError(PtqError):
    """There is no budget, or too little data is held out, or a metric has no interval."""

    code = "PTQ-TUNE-001"


class UnreachableBudgetError(TuneError):
    """The held-out samples are too few to prove the budget, whatever model they are shown."""

    code = "PTQ-TUNE-002"


class TimeBudgetError(TuneError):
    """``--time-budget`` was over before the first candidate had been measured."""

    code = "PTQ-TUNE-003"


class GateError(PtqError):
    """A gate cannot be decided: the report does not have the metric, or the limit is not a number."""

    code = "PTQ-GATE-001"


class BaselineError(PtqError):
    """``--baseline`` names a report of another model, or a report that was measured on other data."""

    code = "PTQ-GATE-002"


class MetricError(PtqError):
    """A metric does not fit what the model computes, such as top-1 on an output without classes."""

    code = "PTQ-METRIC-001"


# A model cannot be read, exported or run as it is.


class ModelFormatError(PtqError):
    """The file is not a model that ptq can read: it is text, a truncated archive or an unknown format."""

    code = "PTQ-MODEL-001"


class PickleError(PtqError):
    """The model is a pickled module. Unpickling can run any code, so ptq asks for ``--trust-pickle``."""

    code = "PTQ-MODEL-002"


class ArchitectureError(PtqError):
    """A state dict was given without ``--arch``, or the module that ``--arch`` builds does not fit it."""

    code = "PTQ-MODEL-003"


class ExportError(PtqError):
    """PyTorch cannot turn the model into a graph; the message names the layer where it failed."""

    code = "PTQ-MODEL-004"


class InvalidOnnxError(PtqError):
    """The ONNX model fails the checker, its opset is too old or too new, or a constant holds NaN or Inf."""

    code = "PTQ-MODEL-005"


class ParityError(PtqError):
    """On the first batch, the float ONNX model does not compute the same as the model it was made from."""

    code = "PTQ-MODEL-006"


class ModelInputError(PtqError):
    """The shapes of the model's inputs are not known: ptq needs data or ``--input-shape``."""

    code = "PTQ-MODEL-007"


class NotQuantizedError(PtqError):
    """The model has no QuantizeLinear and no DequantizeLinear, and the command expects a quantized model."""

    code = "PTQ-MODEL-008"


class FixedInputError(PtqError):
    """``--input`` names something that is not an input of the model, or gives a value that does not fit."""

    code = "PTQ-MODEL-009"


class ModelFolderError(PtqError):
    """A folder that is named as the model holds no float ONNX files, or the command takes a single file."""

    code = "PTQ-MODEL-010"


# A target or a profile does not allow what was asked for.


class NothingToQuantizeError(PtqError):
    """The target quantizes none of the model's layers; the message says why."""

    code = "PTQ-PLAN-001"


class TargetOverrideError(PtqError):
    """A setting asks for something that the target cannot do, such as uint8 on TensorRT."""

    code = "PTQ-PLAN-002"


class ProfileError(PtqError):
    """A profile is damaged, or is not of this model, target or runtime."""

    code = "PTQ-PROFILE-001"


class ProfilerError(PtqError):
    """The time of operators cannot be measured: the target's runtime has no profiler here."""

    code = "PTQ-PROFILE-002"


# What was asked for cannot be done: options, files, recipes, and code that the user named.


class UsageError(PtqError):
    """A flag or argument of the command line, or an argument of the Python API, cannot be used."""

    code = "PTQ-USAGE-001"


class InputFileError(PtqError):
    """A file or folder does not exist, cannot be read, has an unusable name, or is not a regular file."""

    code = "PTQ-FILE-001"


class OutputFileError(PtqError):
    """The output cannot be written: a read-only folder, a full disk, a URL, or what is not a file."""

    code = "PTQ-FILE-002"


class RecipeSyntaxError(PtqError):
    """The recipe is not valid TOML, or is not a text file."""

    code = "PTQ-RECIPE-001"


class RecipeKeyError(PtqError):
    """The recipe has a key that ptq does not know; the message names the nearest known key."""

    code = "PTQ-RECIPE-002"


class RecipeValueError(PtqError):
    """A setting has the wrong type or a value outside its range, in a recipe or from a flag."""

    code = "PTQ-RECIPE-003"


class UnknownNameError(PtqError):
    """No metric, method, target, device, preset or tensor has this name; the message has the nearest one."""

    code = "PTQ-RECIPE-004"


class EntryPointError(PtqError):
    """A ``file.py:callable`` cannot be imported, does not exist, is not callable, or raised an exception."""

    code = "PTQ-ENTRY-001"


class UntrustedCodeError(PtqError):
    """A recipe that you did not name, in a folder or a run directory, names code that would run."""

    code = "PTQ-TRUST-001"


class PluginError(PtqError):
    """A plug-in of another package cannot be loaded, does not fit, or has a name that is already used."""

    code = "PTQ-PLUGIN-001"


# A quantizer was given what it cannot work with.


class QuantizerValueError(RecipeValueError, ValueError):
    """A quantizer was given a value that it cannot work with: NaN, a negative amax, a scale of 0."""

    code = "PTQ-QUANT-001"


class QuantizerTypeError(UsageError, TypeError):
    """A quantizer was given input of the wrong kind: an integer tensor, or negative values if unsigned."""

    code = "PTQ-QUANT-002"


class QuantizerShapeError(UsageError, RuntimeError):
    """A quantizer's parameter does not fit the tensor's shape, or the tensor is empty and must not be."""

    code = "PTQ-QUANT-003"


class AxisError(QuantizerValueError, IndexError):
    """A tensor has no such axis, or the same axis is named twice."""

    code = "PTQ-QUANT-004"


class UnsupportedFormatError(UsageError, NotImplementedError):
    """A number format that no quantizer of ptq supports, such as the float8 format E5M2."""

    code = "PTQ-QUANT-005"


# What a device gave for cases of a model cannot be compared.


class CasesError(PtqError):
    """A folder of cases is damaged, was changed, or was made by another version of ptq."""

    code = "PTQ-CASES-001"


class AnswerError(PtqError):
    """A device's answer is damaged, not finished, or holds NaN; the message says what is missing."""

    code = "PTQ-CASES-002"


class OtherCasesError(PtqError):
    """The answer is to other cases, or of another version of the model."""

    code = "PTQ-CASES-003"


# A runtime, a device or the memory does not suffice.


class RuntimeFailedError(PtqError):
    """ONNX Runtime cannot load or run the model; the message includes its error."""

    code = "PTQ-RUNTIME-001"


class MemoryLimitError(PtqError):
    """``runtime.max_memory`` is too small for one sample and one tensor at a time; the hint has a limit."""

    code = "PTQ-RUNTIME-002"


class NoMemoryError(PtqError):
    """There was not enough memory for what the command did."""

    code = "PTQ-RUNTIME-004"


class MissingRuntimeError(PtqError):
    """The target's runtime is not installed, or cannot be imported."""

    code = "PTQ-RUNTIME-005"


class WrongKernelError(PtqError):
    """An integer kernel of the target's runtime computes something else than the quantized model says."""

    code = "PTQ-RUNTIME-006"


class DeviceError(PtqError):
    """``runtime.device`` cannot be used: no CUDA in ONNX Runtime or PyTorch, no such GPU, or no library."""

    code = "PTQ-RUNTIME-003"

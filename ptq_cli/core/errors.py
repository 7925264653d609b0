"""The errors a user can meet, each with a stable code.

One class per thing that can be wrong. The class carries the code and, in its docstring, the text of its
section in ``docs/errors.md`` (generated; ``make docs``). The instance carries one line that says what is
wrong: what was found, what was expected, and where; and a hint that says what to do.

Programs import the classes from here, as ``docs/stability.md`` promises; so do the other rooms.
"""

from typing import Any, ClassVar

LONGEST_TEXT = 4000  # Characters of a message or a hint: a damaged file may have names of any length.


def cut(text: str) -> str:
    """A text, without its middle if it is longer than ``LONGEST_TEXT``.

    Example:
        >>> cut("short"), len(cut("long" * 2000)) < LONGEST_TEXT
        ('short', True)
    """
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT // 2]} … {text[-LONGEST_TEXT // 4 :]}"


def first_line(error: BaseException, limit: int = 160) -> str:
    r"""The first line of what another library said, cut to ``limit`` characters.

    Example:
        >>> first_line(ValueError("bad\nlong story"))
        'bad'
        >>> first_line(KeyError())
        'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:limit] if lines else type(error).__name__


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

    def __init_subclass__(cls, *, code: str, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.code = code

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = cut(" ".join(message.split()))
        self.hint = cut(" ".join(hint.split()))

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


class NonFiniteActivationError(PtqError, code="PTQ-CALIB-001"):
    """The model computed NaN or Inf."""


class CalibrationFileError(PtqError, code="PTQ-CALIB-002"):
    """``calibration.safetensors`` is damaged, or of a format version that this ptq does not read."""


class StaleCalibrationError(PtqError, code="PTQ-CALIB-003"):
    """The calibration was made with a different model or a different recipe."""


class MissingStatisticError(PtqError, code="PTQ-CALIB-004"):
    """An amax method, or ``ptq drift``, needs statistics that the calibration did not keep."""


class IncompleteCalibrationError(PtqError, code="PTQ-CALIB-005"):
    """The calibration is incomplete: shards are missing, or it is the checkpoint of an interrupted run."""


class EvaluationFileError(PtqError, code="PTQ-EVAL-001"):
    """A shard of an evaluation is damaged, or of a format version that this ptq does not read."""


class IncompleteEvaluationError(PtqError, code="PTQ-EVAL-002"):
    """The evaluation is incomplete: shards are missing, or one is not finished."""


class MergeError(PtqError, code="PTQ-MERGE-001"):
    """The runs to merge are not shards of the same calibration or evaluation."""


class OverlappingShardsError(PtqError, code="PTQ-MERGE-002"):
    """Two of the runs to merge hold the same shard, which would be counted twice."""


class RanksError(PtqError, code="PTQ-RANKS-001"):
    """The processes of a command lost contact, or their environment variables contradict each other."""


class MissingStageError(PtqError, code="PTQ-RUN-001"):
    """A command was run before the one that it depends on, such as export before calibrate."""


class DataFormatError(PtqError, code="PTQ-DATA-001"):
    """The data is not in a format that ptq reads, or the file is damaged or holds Python objects."""


class DataNameError(PtqError, code="PTQ-DATA-002"):
    """The data has no array for one of the model's inputs, or an array that is not one of its inputs."""


class DataShapeError(PtqError, code="PTQ-DATA-003"):
    """An array's rank or shape does not fit the model's input."""


class DataTypeError(PtqError, code="PTQ-DATA-004"):
    """An array's dtype does not fit the model's input."""


class BatchAxisError(PtqError, code="PTQ-DATA-009"):
    """``data.batch_axis`` names neither an input nor an output of the model, or an axis that is not there."""


class CarryError(PtqError, code="PTQ-DATA-010"):
    """An output cannot be the next step's input: names, types or shapes do not fit."""


class EmptyDataError(PtqError, code="PTQ-DATA-005"):
    """The data set has no samples, or no data was given to a command that needs it."""


class LabelError(PtqError, code="PTQ-DATA-006"):
    """A metric needs labels and the data has none, or a label lies outside the classes."""


class DamagedSampleError(PtqError, code="PTQ-DATA-007"):
    """One sample cannot be decoded, such as a corrupt JPEG."""


class NonFiniteDataError(PtqError, code="PTQ-DATA-008"):
    """The data holds NaN or Inf."""


class TokenizerError(PtqError, code="PTQ-TEXT-001"):
    """``text.tokenizer`` is not a tokenizer, or its tokens are not in the embedding of the model."""


class SequenceLengthError(PtqError, code="PTQ-TEXT-002"):
    """A window is longer than the model takes, or the text is shorter than one window."""


class CacheInputError(PtqError, code="PTQ-TEXT-003"):
    """An input that holds a key-value cache has no shape that an empty cache could have."""


class ReportError(PtqError, code="PTQ-REPORT-001"):
    """The report is damaged, has another format version, or is not a report at all."""


class AnalysisError(PtqError, code="PTQ-ANALYSIS-001"):
    """The analysis is damaged, has another format version, or is not an analysis at all."""


class RecoveryError(PtqError, code="PTQ-RECOVERY-001"):
    """There are too few samples to recover accuracy from: some have to be held out."""


class TuneError(PtqError, code="PTQ-TUNE-001"):
    """There is no budget, or too little data is held out, or a metric has no interval."""


class UnreachableBudgetError(TuneError, code="PTQ-TUNE-002"):
    """The held-out samples are too few to prove the budget."""


class TimeBudgetError(TuneError, code="PTQ-TUNE-003"):
    """``--time-budget`` was over before the first candidate had been measured."""


class GateError(PtqError, code="PTQ-GATE-001"):
    """A gate cannot be decided: the report does not have the metric, or the limit is not a number."""


class BaselineError(PtqError, code="PTQ-GATE-002"):
    """``--baseline`` names a report of another model, or a report that was measured on other data."""


class MetricError(PtqError, code="PTQ-METRIC-001"):
    """A metric does not fit what the model computes, such as top-1 on an output without classes."""


class ModelFormatError(PtqError, code="PTQ-MODEL-001"):
    """The file is not a model that ptq can read: it is text, a truncated archive or an unknown format."""


class PickleError(PtqError, code="PTQ-MODEL-002"):
    """The model is a pickled module. Unpickling can run any code, so ptq asks for ``model.trust_pickle``."""


class ArchitectureError(PtqError, code="PTQ-MODEL-003"):
    """A state dict was given without ``--arch``, or the module that ``--arch`` builds does not fit it."""


class ExportError(PtqError, code="PTQ-MODEL-004"):
    """PyTorch cannot turn the model into a graph."""


class InvalidOnnxError(PtqError, code="PTQ-MODEL-005"):
    """The ONNX model fails the checker, its opset is too old or too new, or a constant holds NaN or Inf."""


class ParityError(PtqError, code="PTQ-MODEL-006"):
    """On the first batch, the float ONNX model does not compute the same as the model it was made from."""


class ModelInputError(PtqError, code="PTQ-MODEL-007"):
    """The shapes of the model's inputs are not known: ptq needs data or ``model.input_shape``."""


class NotQuantizedError(PtqError, code="PTQ-MODEL-008"):
    """The model has no QuantizeLinear and no DequantizeLinear, and the command expects a quantized model."""


class FixedInputError(PtqError, code="PTQ-MODEL-009"):
    """``model.inputs`` names what is not an input of the model, or gives a value that does not fit."""


class ModelFolderError(PtqError, code="PTQ-MODEL-010"):
    """A folder that is named as the model holds no float ONNX files, or the command takes a single file."""


class NothingToQuantizeError(PtqError, code="PTQ-PLAN-001"):
    """The target quantizes none of the model's layers."""


class NothingGainedError(PtqError, code="PTQ-PLAN-003"):
    """The quantized file would be larger than the float one, and nobody asked for it all the same."""


class UnrepairableError(PtqError, code="PTQ-REPAIR-001"):
    """``ptq repair`` cannot change a weight that can saturate: it is computed, or read in an unknown way."""


class UnlikeFloatError(PtqError, code="PTQ-REPAIR-002"):
    """The model of ``ptq repair --float`` holds none of the weights that the file was quantized from."""


class TargetOverrideError(PtqError, code="PTQ-PLAN-002"):
    """A setting asks for something that the target cannot do, such as uint8 on TensorRT."""


class ProfileError(PtqError, code="PTQ-PROFILE-001"):
    """A profile is damaged, or is not of this model, target or runtime."""


class ProfilerError(PtqError, code="PTQ-PROFILE-002"):
    """The time of operators cannot be measured: the target's runtime has no profiler here."""


class UsageError(PtqError, code="PTQ-USAGE-001"):
    """A flag or argument of the command line, or an argument of the Python API, cannot be used."""


class InputFileError(PtqError, code="PTQ-FILE-001"):
    """A file or folder does not exist, cannot be read, has an unusable name, or is not a regular file."""


class OutputFileError(PtqError, code="PTQ-FILE-002"):
    """The output cannot be written: a read-only folder, a full disk, a URL, or what is not a file."""


class RecipeSyntaxError(PtqError, code="PTQ-RECIPE-001"):
    """The recipe is not valid TOML, or is not a text file."""


class RecipeKeyError(PtqError, code="PTQ-RECIPE-002"):
    """The recipe has a key that ptq does not know."""


class RecipeValueError(PtqError, code="PTQ-RECIPE-003"):
    """A setting has the wrong type or a value outside its range, in a recipe or from a flag."""


class UnknownNameError(PtqError, code="PTQ-RECIPE-004"):
    """No metric, method, target, device, preset or tensor has this name."""


class EntryPointError(PtqError, code="PTQ-ENTRY-001"):
    """A ``file.py:callable`` cannot be imported, does not exist, is not callable, or raised an exception."""


class UntrustedCodeError(PtqError, code="PTQ-TRUST-001"):
    """A recipe that you did not name, in a folder or a run directory, names code that would run."""


class PluginError(PtqError, code="PTQ-PLUGIN-001"):
    """A plug-in of another package cannot be loaded, does not fit, or has a name that is already used."""


class QuantizerValueError(RecipeValueError, ValueError, code="PTQ-QUANT-001"):
    """A quantizer was given a value that it cannot work with: NaN, a negative amax, a scale of 0."""


class QuantizerTypeError(UsageError, TypeError, code="PTQ-QUANT-002"):
    """A quantizer was given input of the wrong kind: an integer tensor, or negative values if unsigned."""


class QuantizerShapeError(UsageError, RuntimeError, code="PTQ-QUANT-003"):
    """A quantizer's parameter does not fit the tensor's shape, or the tensor is empty and must not be."""


class AxisError(QuantizerValueError, IndexError, code="PTQ-QUANT-004"):
    """A tensor has no such axis, or the same axis is named twice."""


class UnsupportedFormatError(UsageError, NotImplementedError, code="PTQ-QUANT-005"):
    """A number format that no quantizer of ptq supports, such as the float8 format E5M2."""


class StatementError(PtqError, code="PTQ-STATEMENT-001"):
    """A quantized file has no statement beside it, or a damaged one."""


class NotRederivableError(PtqError, code="PTQ-STATEMENT-002"):
    """A quantized file cannot be made again here."""


class CasesError(PtqError, code="PTQ-CASES-001"):
    """A folder of cases is damaged, was changed, or was made by another version of ptq."""


class AnswerError(PtqError, code="PTQ-CASES-002"):
    """A device's answer is damaged, not finished, or holds NaN."""


class OtherCasesError(PtqError, code="PTQ-CASES-003"):
    """The answer is to other cases, or of another version of the model."""


class RuntimeFailedError(PtqError, code="PTQ-RUNTIME-001"):
    """ONNX Runtime cannot load or run the model."""


class MemoryLimitError(PtqError, code="PTQ-RUNTIME-002"):
    """``runtime.max_memory`` is too small for one sample and one tensor at a time."""


class NoMemoryError(PtqError, code="PTQ-RUNTIME-004"):
    """There was not enough memory for what the command did."""


class MissingRuntimeError(PtqError, code="PTQ-RUNTIME-005"):
    """The target's runtime is not installed, or cannot be imported."""


class WrongKernelError(PtqError, code="PTQ-RUNTIME-006"):
    """An integer kernel of the target's runtime computes something else than the quantized model says."""


class DeviceError(PtqError, code="PTQ-RUNTIME-003"):
    """``runtime.device`` cannot be used: no CUDA in ONNX Runtime or PyTorch, no such GPU, or no library."""

"""The errors a user can meet, each with a stable code.

One class per thing that can be wrong, in a file for each family of codes. The class carries the code and, in
its docstring, the text of its section in ``docs/errors.md`` (generated; ``make docs``). The instance carries
one line that says what is wrong: what was found, what was expected, and where; and a hint that says what to
do.

Programs import the classes from here, as ``docs/stability.md`` promises; so do the other rooms.
"""

from ptq_cli.core.errors.calibration_errors import ActivationAxisError as ActivationAxisError
from ptq_cli.core.errors.calibration_errors import CalibrationFileError as CalibrationFileError
from ptq_cli.core.errors.calibration_errors import EvaluationFileError as EvaluationFileError
from ptq_cli.core.errors.calibration_errors import IncompleteCalibrationError as IncompleteCalibrationError
from ptq_cli.core.errors.calibration_errors import IncompleteEvaluationError as IncompleteEvaluationError
from ptq_cli.core.errors.calibration_errors import MergeError as MergeError
from ptq_cli.core.errors.calibration_errors import MissingStageError as MissingStageError
from ptq_cli.core.errors.calibration_errors import MissingStatisticError as MissingStatisticError
from ptq_cli.core.errors.calibration_errors import NonFiniteActivationError as NonFiniteActivationError
from ptq_cli.core.errors.calibration_errors import OverlappingShardsError as OverlappingShardsError
from ptq_cli.core.errors.calibration_errors import RanksError as RanksError
from ptq_cli.core.errors.calibration_errors import StaleCalibrationError as StaleCalibrationError
from ptq_cli.core.errors.data_errors import BatchAxisError as BatchAxisError
from ptq_cli.core.errors.data_errors import CacheInputError as CacheInputError
from ptq_cli.core.errors.data_errors import DamagedSampleError as DamagedSampleError
from ptq_cli.core.errors.data_errors import DataFormatError as DataFormatError
from ptq_cli.core.errors.data_errors import DataNameError as DataNameError
from ptq_cli.core.errors.data_errors import DataShapeError as DataShapeError
from ptq_cli.core.errors.data_errors import DataTypeError as DataTypeError
from ptq_cli.core.errors.data_errors import EmptyDataError as EmptyDataError
from ptq_cli.core.errors.data_errors import LabelError as LabelError
from ptq_cli.core.errors.data_errors import NonFiniteDataError as NonFiniteDataError
from ptq_cli.core.errors.data_errors import SequenceLengthError as SequenceLengthError
from ptq_cli.core.errors.data_errors import TokenizerError as TokenizerError
from ptq_cli.core.errors.judgement_errors import AnalysisError as AnalysisError
from ptq_cli.core.errors.judgement_errors import BaselineError as BaselineError
from ptq_cli.core.errors.judgement_errors import GateError as GateError
from ptq_cli.core.errors.judgement_errors import MetricError as MetricError
from ptq_cli.core.errors.judgement_errors import MomentsFileError as MomentsFileError
from ptq_cli.core.errors.judgement_errors import RecoveryError as RecoveryError
from ptq_cli.core.errors.judgement_errors import ReportError as ReportError
from ptq_cli.core.errors.judgement_errors import StaleMomentsError as StaleMomentsError
from ptq_cli.core.errors.judgement_errors import TimeBudgetError as TimeBudgetError
from ptq_cli.core.errors.judgement_errors import TuneError as TuneError
from ptq_cli.core.errors.judgement_errors import UnreachableBudgetError as UnreachableBudgetError
from ptq_cli.core.errors.model_errors import ArchitectureError as ArchitectureError
from ptq_cli.core.errors.model_errors import ExportError as ExportError
from ptq_cli.core.errors.model_errors import FixedInputError as FixedInputError
from ptq_cli.core.errors.model_errors import InvalidOnnxError as InvalidOnnxError
from ptq_cli.core.errors.model_errors import ModelFolderError as ModelFolderError
from ptq_cli.core.errors.model_errors import ModelFormatError as ModelFormatError
from ptq_cli.core.errors.model_errors import ModelInputError as ModelInputError
from ptq_cli.core.errors.model_errors import NotQuantizedError as NotQuantizedError
from ptq_cli.core.errors.model_errors import ParityError as ParityError
from ptq_cli.core.errors.model_errors import PickleError as PickleError
from ptq_cli.core.errors.planning_errors import NothingToQuantizeError as NothingToQuantizeError
from ptq_cli.core.errors.planning_errors import ProfileError as ProfileError
from ptq_cli.core.errors.planning_errors import ProfilerError as ProfilerError
from ptq_cli.core.errors.planning_errors import TargetOverrideError as TargetOverrideError
from ptq_cli.core.errors.ptq_error import PtqError as PtqError
from ptq_cli.core.errors.quantizer_errors import AxisError as AxisError
from ptq_cli.core.errors.quantizer_errors import QuantizerShapeError as QuantizerShapeError
from ptq_cli.core.errors.quantizer_errors import QuantizerTypeError as QuantizerTypeError
from ptq_cli.core.errors.quantizer_errors import QuantizerValueError as QuantizerValueError
from ptq_cli.core.errors.quantizer_errors import UnsupportedFormatError as UnsupportedFormatError
from ptq_cli.core.errors.request_errors import EntryPointError as EntryPointError
from ptq_cli.core.errors.request_errors import InputFileError as InputFileError
from ptq_cli.core.errors.request_errors import OutputFileError as OutputFileError
from ptq_cli.core.errors.request_errors import PluginError as PluginError
from ptq_cli.core.errors.request_errors import RecipeKeyError as RecipeKeyError
from ptq_cli.core.errors.request_errors import RecipeSyntaxError as RecipeSyntaxError
from ptq_cli.core.errors.request_errors import RecipeValueError as RecipeValueError
from ptq_cli.core.errors.request_errors import UnknownNameError as UnknownNameError
from ptq_cli.core.errors.request_errors import UsageError as UsageError
from ptq_cli.core.errors.runtime_errors import DeviceError as DeviceError
from ptq_cli.core.errors.runtime_errors import MemoryLimitError as MemoryLimitError
from ptq_cli.core.errors.runtime_errors import MissingRuntimeError as MissingRuntimeError
from ptq_cli.core.errors.runtime_errors import NoMemoryError as NoMemoryError
from ptq_cli.core.errors.runtime_errors import RuntimeFailedError as RuntimeFailedError

"""A calibration cannot be made, used or merged; likewise the parts of an evaluation."""

from ptq_cli.core.errors.ptq_error import PtqError


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
    """The amax method needs statistics that the calibration did not keep, such as a histogram."""

    code = "PTQ-CALIB-004"


class IncompleteCalibrationError(PtqError):
    """The calibration is incomplete: shards are missing, or it is the checkpoint of an interrupted run."""

    code = "PTQ-CALIB-005"


class ActivationAxisError(PtqError):
    """An axis of ``--activation-axis`` does not exist, is the axis of the samples, or changes its length."""

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

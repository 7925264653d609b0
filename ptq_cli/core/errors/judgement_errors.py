"""Reports, metrics, gates, budgets and recovery: nothing can be judged or gained by them."""

from ptq_cli.core.errors.ptq_error import PtqError


class ReportError(PtqError):
    """The report is damaged, has a newer format version, or is not a report at all."""

    code = "PTQ-REPORT-001"


class AnalysisError(PtqError):
    """The analysis is damaged, has a newer format version, or is not an analysis at all."""

    code = "PTQ-ANALYSIS-001"


class RecoveryError(PtqError):
    """There are too few samples to recover accuracy from: some have to be set aside to decide by."""

    code = "PTQ-RECOVERY-001"


class MomentsFileError(PtqError):
    """A file of moments is damaged, of another format version, or something else."""

    code = "PTQ-RECOVERY-002"


class StaleMomentsError(PtqError):
    """Moments rest on another calibration, other ranges or another model than those at hand."""

    code = "PTQ-RECOVERY-003"


class TuneError(PtqError):
    """There is no budget, or too little data is set aside to decide by, or a metric has no interval."""

    code = "PTQ-TUNE-001"


class UnreachableBudgetError(TuneError):
    """The samples set aside are too few to prove the budget, whatever model they are shown."""

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

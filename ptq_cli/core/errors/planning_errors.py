"""A target or a profile does not allow what was asked for."""

from ptq_cli.core.errors.ptq_error import PtqError


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

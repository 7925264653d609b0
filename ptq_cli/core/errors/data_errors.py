"""Data or texts do not fit the model."""

from ptq_cli.core.errors.ptq_error import PtqError


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

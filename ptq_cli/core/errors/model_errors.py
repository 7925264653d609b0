"""A model cannot be read, exported or run as it is."""

from ptq_cli.core.errors.ptq_error import PtqError


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

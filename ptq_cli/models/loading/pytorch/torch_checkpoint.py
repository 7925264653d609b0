"""State dicts and pickled modules: what ``torch.save`` and safetensors write."""

import pickle
import re
from pathlib import Path

import torch

from ptq_cli.core.errors import ArchitectureError, ModelFormatError, PickleError
from ptq_cli.core.errors.error_text import first_line
from ptq_cli.models.loading.detect import ModelKind
from ptq_cli.models.loading.pytorch.arch import build_module, unwrap_state
from ptq_cli.models.quiet import quiet_exporter
from ptq_cli.recipe.sections.input_sections import ModelSettings

MISSING_CLASS = re.compile(r"Can't get attribute '([^']+)'")
"""What pickle says of a class that its module does not have, such as one that a script defined."""


def load_checkpoint(path: Path, kind: ModelKind, settings: ModelSettings) -> torch.nn.Module:
    """Return the module of a state dict and ``--arch``, or a pickled module if that is trusted.

    Raises:
        ModelFormatError: the file is damaged.
        PickleError: it needs unpickling and ``trust_pickle`` is not set.
        ArchitectureError: it is a state dict and ``--arch`` is missing or does not fit.
    """
    content = _load_safetensors(path) if kind is ModelKind.SAFETENSORS else _load_torch(path, settings)
    if isinstance(content, torch.nn.Module):
        return content.eval()
    if not isinstance(content, dict) or not unwrap_state(content):
        raise ModelFormatError(
            f"'{path.name}' holds a {type(content).__name__}, expected a state dict or a module",
            hint="save model.state_dict() or export the model with torch.export",
        )
    if settings.arch is None:
        raise ArchitectureError(
            f"'{path.name}' is a state dict: it has the parameters but not the architecture",
            hint="add --arch model.py:build, or arch = 'model.py:build' under [model] in ptq.toml",
        )
    return build_module(settings.arch, content, path.name)


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ModelFormatError(f"'{path.name}' is damaged: {error}", hint="copy it again") from error
    return tensors


def _load_torch(path: Path, settings: ModelSettings) -> object:
    try:
        with quiet_exporter():
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not settings.trust_pickle:
            raise PickleError(
                f"'{path.name}' is a pickle that holds more than tensors, and loading it can run any code",
                hint="save a state dict and use --arch, or, if you trust the file, add --trust-pickle",
            ) from error
    except Exception as error:  # a damaged pickle raises anything: IndexError, AttributeError, AssertionError
        raise _damaged(path, error) from error
    try:
        with quiet_exporter():
            return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelFormatError:
    missing = MISSING_CLASS.match(str(error))
    if missing or isinstance(error, ImportError):
        what = f"the class '{missing[1]}'" if missing else f"a module: {first_line(error)}"
        return ModelFormatError(
            f"'{path.name}' cannot be loaded: it needs {what}",
            hint="a pickled module needs the code of its class, and a script's class cannot be imported: "
            "save model.state_dict(), and pass --arch model.py:build with a function that builds the model",
        )
    return ModelFormatError(
        f"'{path.name}' cannot be loaded: {type(error).__name__}: {first_line(error)}",
        hint="the file is damaged, or was saved by another version of its libraries: save model.state_dict() "
        "and use --arch",
    )

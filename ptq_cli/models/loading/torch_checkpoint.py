"""Checkpoints of PyTorch and safetensors: state dicts, and pickled modules if they are trusted."""

import pickle
import re
from pathlib import Path

import torch

from ptq_cli.core.errors import ArchitectureError, ModelFormatError, PickleError, first_line
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.trust import PICKLE, model_key, require_trust
from ptq_cli.models.loading.detect import ModelKind
from ptq_cli.models.loading.state_dicts import build_module, has_state_dict, without_wrapper
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.recipe.sections import ModelSettings

MISSING_CLASS = re.compile(r"Can't get attribute '([^']+)'")  # of a class that a script defined


def load_checkpoint(
    path: Path, kind: ModelKind, settings: ModelSettings
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Return the module of a state dict and ``--arch``, or a pickled one if trusted, with notes."""
    content = _load_safetensors(path) if kind is ModelKind.SAFETENSORS else _load_torch(path, settings)
    if isinstance(content, torch.nn.Module):
        return without_wrapper(content).eval(), ()
    if not isinstance(content, dict) or not has_state_dict(content):
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
                hint="save a state dict and use --arch, or, if you trust the file, add --set "
                "model.trust_pickle=true",
            ) from error
        require_trusted_pickle(path)
    except Exception as error:  # a damaged pickle raises anything: IndexError, AttributeError, AssertionError
        raise _damaged(path, error) from error
    try:
        with quiet_exporter():
            return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise _damaged(path, error) from error


def require_trusted_pickle(path: Path) -> None:
    """Refuse to unpickle a model if a recipe allows it that the user neither named nor trusts."""
    require_trust(model_key(path, "pickle"), sha256_file(path), str(path), granted_by=PICKLE)


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

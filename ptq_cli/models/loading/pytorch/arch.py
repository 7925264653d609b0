"""``--arch``: the module that a state dict belongs to."""

from collections.abc import Mapping
from pathlib import Path

import torch

from ptq_cli.core.entry_point import load_entry_point
from ptq_cli.core.errors import ArchitectureError, EntryPointError

WRAPPER_KEYS = ("state_dict", "model_state_dict", "model")
WRAPPER_PREFIXES = ("module.", "_orig_mod.")
SHOWN_KEYS = 4


def build_module(arch: str, state: Mapping[str, object], file_name: str) -> torch.nn.Module:
    """Build the architecture and load the state dict into it.

    Args:
        arch: ``file.py:callable`` or ``package.module:callable``; called without arguments.
        state: the checkpoint; the usual wrappers (``{"state_dict": …}``, a ``module.`` prefix of
            DataParallel, ``_orig_mod.`` of torch.compile) are taken off.
        file_name: of the checkpoint, for messages.

    Raises:
        EntryPointError: the callable is missing, not callable, or raised.
        ArchitectureError: it returned no module, or its parameters do not fit; the message names keys.
    """
    factory = load_entry_point(arch, Path.cwd(), "--arch")
    try:
        module = factory()
    except Exception as error:
        raise EntryPointError(
            f"--arch '{arch}' raised {type(error).__name__}: {error}",
            hint="it is called without arguments; --debug shows the whole traceback",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise ArchitectureError(
            f"--arch '{arch}' returned a {type(module).__name__}, expected a torch.nn.Module",
            hint="return the module from the function",
        )
    tensors = unwrap_state(state)
    _require_fit(module, tensors, arch, file_name)
    module.load_state_dict(tensors)
    return module.eval()


def unwrap_state(state: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the bare state dict of a checkpoint.

    Example:
        >>> list(unwrap_state({"state_dict": {"module.weight": torch.zeros(1)}, "epoch": 3}))
        ['weight']
    """
    for key in WRAPPER_KEYS:
        inner = state.get(key)
        if isinstance(inner, Mapping) and any(isinstance(value, torch.Tensor) for value in inner.values()):
            state = inner
            break
    tensors = {str(key): value for key, value in state.items() if isinstance(value, torch.Tensor)}
    for prefix in WRAPPER_PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _require_fit(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], arch: str, file_name: str
) -> None:
    wanted = module.state_dict()
    missing = [key for key in wanted if key not in tensors]
    unexpected = [key for key in tensors if key not in wanted]
    shapes = [
        f"{key} is {list(tensors[key].shape)} in the file and {list(wanted[key].shape)} in the architecture"
        for key in wanted
        if key in tensors and tensors[key].shape != wanted[key].shape
    ]
    faults = []
    if missing:
        faults.append(f"missing in the file: {_some(missing)}")
    if unexpected:
        faults.append(f"not in the architecture: {_some(unexpected)}")
    if shapes:
        faults.append(f"other shape: {_some(shapes)}")
    if faults:
        raise ArchitectureError(
            f"'{file_name}' does not fit --arch '{arch}': {'; '.join(faults)}",
            hint="name the architecture that the checkpoint was trained with",
        )


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_KEYS
    return ", ".join(names[:SHOWN_KEYS]) + (f" and {more} more" if more > 0 else "")

"""Checkpoints of PyTorch and safetensors: state dicts that fit an architecture, and trusted modules."""

import pickle
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from ptq_cli.core.entry_points import load_entry_point
from ptq_cli.core.errors import ArchitectureError, EntryPointError, ModelFormatError, PickleError, first_line
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.trust import PICKLE, model_key, require_trust
from ptq_cli.core.words import few
from ptq_cli.models.loading.source import ModelKind
from ptq_cli.models.quiet_export import quiet_exporter
from ptq_cli.recipe.sections import ModelSettings

_Tensors = dict[str, Any]
# What DataParallel, torch.compile, FSDP and activation checkpoints put between the names of a key
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Counters of AveragedModel and BatchNorm, which no output depends on: a file may have them or not
_COUNTERS = ("n_averaged", "num_batches_tracked")
PLAIN_NAMES = ("", "state_dict", "model_state_dict", "model", "params", "network", "net")
# Names of moving averages of weights, which trainings evaluate: timm and BasicSR take them first, too
AVERAGED = re.compile(r"(^|[._])(ema|swa|averaged?)([._]|$)")
DEEPEST = 3
SHOWN_KEYS = 4


@dataclass(frozen=True)
class _Fit:
    """One way to read a state dict out of a checkpoint.

    Attributes:
        place: keys of the checkpoint that lead to it, joined by dots; empty for the checkpoint itself.
        prefix: what its keys have in front of the architecture's, without the names of wrappers.
        keys: the key in the file of each tensor, by the architecture's.
    """

    place: str
    prefix: str
    tensors: _Tensors
    keys: Mapping[str, str]

    @property
    def named(self) -> str:
        """Its names in the file."""
        return (
            f"'{self.place}'" if not self.prefix else f"'{'.'.join(filter(None, (self.place, self.prefix)))}'"
        )

    @property
    def rank(self) -> tuple[bool, int]:
        """Averages first, then the plain names in their order, then any other."""
        names = [*self.place.split("."), *self.prefix.split(".")]
        is_averaged = bool(AVERAGED.search(f"{self.place}.{self.prefix}"))
        return not is_averaged, max(
            PLAIN_NAMES.index(name) if name in PLAIN_NAMES else len(PLAIN_NAMES) for name in names
        )

    @property
    def state(self) -> _Tensors:
        """The tensors by the architecture's keys."""
        return {own: self.tensors[key] for own, key in self.keys.items()}


def has_state_dict(content: Mapping[str, object]) -> bool:
    """Return whether a checkpoint holds tensors by name."""
    return next(_state_dicts(content), None) is not None


def build_module(
    arch: str, content: Mapping[str, object], file_name: str
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Build the architecture and load what fits it; return the module and notes on what was taken.

    Args:
        arch: ``file.py:callable`` or ``package.module:callable``; called without arguments.
        content: the checkpoint: a state dict, or a dict that has one or several, with other things beside.
        file_name: of the checkpoint, for messages.
    """
    module = _made(arch)
    wanted = module.state_dict()
    ways = [way for place, tensors in _state_dicts(content) for way in _ways(place, tensors, wanted)]
    fits = sorted((way for way in ways if not _faults(module, wanted, way)), key=lambda way: way.rank)
    if not fits:
        closest = max(ways, key=lambda way: len(way.keys.keys() & wanted.keys()))
        raise ArchitectureError(
            f"'{file_name}' does not fit --arch '{arch}': {'; '.join(_faults(module, wanted, closest))}",
            hint="name the architecture that the checkpoint was trained with",
        )
    taken, others = fits[0], fits[1:]
    if others and taken.rank == others[0].rank == (True, len(PLAIN_NAMES)):
        raise ArchitectureError(
            f"--arch '{arch}' fits several state dicts of '{file_name}': "
            f"{few([way.named for way in fits], SHOWN_KEYS)}",
            hint="save the one to quantize in a file of its own",
        )
    _faults(module, wanted, taken)  # Loads it: each attempt has overwritten the one before.
    return module.eval(), tuple(_notes(taken, others, file_name))


def _made(arch: str) -> torch.nn.Module:
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
    return without_wrapper(module)


def without_wrapper(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that torch.compile, DataParallel or AveragedModel wraps: its inputs have names."""
    if isinstance(inner := getattr(module, "_orig_mod", None), torch.nn.Module):
        return without_wrapper(inner)
    if isinstance(module, (DataParallel, DistributedDataParallel, AveragedModel)):
        return without_wrapper(module.module)
    return module


def _state_dicts(
    content: Mapping[str, object], place: tuple[str, ...] = ()
) -> Iterator[tuple[str, _Tensors]]:
    """Yield each dict of a checkpoint that has tensors by name, with the keys that lead to it."""
    tensors = {key: value for key, value in content.items() if isinstance(value, torch.Tensor)}
    if tensors and all(isinstance(key, str) for key in tensors):
        # Whatever modules keep beside tensors, such as the extra state of TransformerEngine.
        extra = {key: value for key, value in content.items() if str(key).endswith("_extra_state")}
        yield ".".join(place), {**tensors, **extra}
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Mapping) and len(place) < DEEPEST:
            yield from _state_dicts(value, (*place, key))


def _ways(place: str, tensors: _Tensors, wanted: Collection[str]) -> Iterator[_Fit]:
    """Yield the ways to read a state dict: as it is, or without wrappers and under one prefix."""
    plain = _Fit(place, "", tensors, {key: key for key in tensors})
    yield plain
    own = {_without_wrappers(key): key for key in wanted}
    found = {_without_wrappers(key): key for key in tensors}
    if len(own) < len(wanted) or len(found) < len(tensors):
        own, found = {key: key for key in wanted}, {key: key for key in tensors}
    for prefix in _prefixes(found, own):
        under = {name.removeprefix(prefix): key for name, key in found.items() if name.startswith(prefix)}
        keys = {own.get(name, name): key for name, key in under.items()}
        if keys != plain.keys:
            yield _Fit(place, prefix.removesuffix("."), tensors, keys)


def _without_wrappers(key: str) -> str:
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)


def _prefixes(found: Collection[str], wanted: Collection[str]) -> list[str]:
    """Prefixes that at least half of the wanted keys have."""
    votes: dict[str, int] = {}
    for key in found:
        starts = [0, *(match.end() for match in re.finditer(r"\.", key))]
        for start in starts:
            if key[start:] in wanted:
                votes[key[:start]] = votes.get(key[:start], 0) + 1
    return [prefix for prefix, count in votes.items() if 2 * count >= len(wanted)]


def _faults(module: torch.nn.Module, wanted: Mapping[str, torch.Tensor], way: _Fit) -> list[str]:
    """Load a state dict, and return why PyTorch says that it does not fit: modules know their older keys."""
    state = way.state
    for key in [key for key in state if key not in wanted and key.rpartition(".")[2] in _COUNTERS]:
        del state[key]
    loaded = {_address(wanted[key]) for key in state if key in wanted}
    kept = {
        key: value
        for key, value in wanted.items()
        if key not in state and (key.rpartition(".")[2] in _COUNTERS or _address(value) in loaded - {None})
    }
    try:
        module.load_state_dict({**state, **kept})
    except Exception as error:  # noqa: BLE001 - modules of users may raise anything here
        return _differences({**state, **kept}, wanted) or [first_line(error)]
    return []


def _address(value: object) -> tuple[int, tuple[int, ...]] | None:
    """Return where the values of a tensor are, by which tied ones are known: files often hold one of them."""
    if not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(value) or not value.numel():
        return None
    return value.data_ptr(), tuple(value.shape)


def _differences(state: _Tensors, wanted: Mapping[str, torch.Tensor]) -> list[str]:
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} is {list(state[key].shape)} in the file and {list(value.shape)} in the architecture"
        for key, value in wanted.items()
        if key in state and isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value)
        if isinstance(state[key], torch.Tensor) and state[key].shape != value.shape
    ]
    found = {"missing in the file": missing, "not in the architecture": unexpected, "other shape": shapes}
    return [f"{what}: {few(names, SHOWN_KEYS)}" for what, names in found.items() if names]


def _notes(taken: _Fit, others: list[_Fit], file_name: str) -> Iterator[str]:
    """Notes on a state dict that is not the whole file as it is."""
    rest = [way.named for way in others if way.place != taken.place or way.prefix != taken.prefix]
    if taken.place or rest:
        also = f", not {few(rest, SHOWN_KEYS)}, which fits too" if rest else ""
        yield f"the weights are those of {taken.named} in '{file_name}'{also}"
    removed = [taken.prefix] if taken.prefix else []
    names = [(own.split("."), key.split(".")) for own, key in taken.keys.items()]
    removed += [part for part in WRAPPERS if any(key.count(part) > own.count(part) for own, key in names)]
    if removed:
        words = few([f"'{part}.'" for part in removed], SHOWN_KEYS)
        yield f"removed from the names of the weights in '{file_name}': {words}"
    read = {key for way in (taken, *others) if way.place == taken.place for key in way.keys.values()}
    left = [key for key in taken.tensors if key not in read]
    if left:
        yield f"left out, because the architecture has no place for them: {few(left, SHOWN_KEYS)}"


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

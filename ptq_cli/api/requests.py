"""The arguments of an API function, passed objects included, as the request that commands make of options.

A run's recipe names data and architectures by texts. An object is kept under such a text until the process
ends; a later process that reads the recipe is told that the object is gone.
"""

import atexit
import copy
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from ptq_cli.calibdata.callable_dataset import as_arrays
from ptq_cli.core.errors import EmptyDataError, UsageError
from ptq_cli.recipe.keyword_settings import Settings
from ptq_cli.setup.resolve import Request

_NAME = re.compile(r"[0-9A-Za-z]*_[0-9a-f]{16}(_[0-9]+)?")
_FACTORIES: dict[str, Callable[[], Any]] = {}
_DATA = "a path, arrays, a dict of arrays, a DataLoader, a list of batches, or a function that yields batches"
_MODELS = "a path, a torch.nn.Module, an onnx.ModelProto or an onnx_ir.Model"


@dataclass(frozen=True)
class PassedData:
    """Data that was passed as an object; calling it returns the batches.

    Attributes:
        data: the object.
        make: returns its batches.
        is_identified: its name holds a hash of all values. Of others, such as a DataLoader, which would have
            to be read once more, it holds one of the first batch and the length.
    """

    data: Any
    make: Callable[[], Iterable[Any]]
    is_identified: bool

    def __call__(self) -> Iterable[Any]:
        """The batches."""
        return self.make()


def __getattr__(name: str) -> Callable[[], Any]:
    """Attribute lookup by name, as an entry point is looked up."""
    if not _NAME.fullmatch(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FACTORIES.get(name, _gone)


def _gone() -> Any:
    raise LookupError("it was passed as a Python object, and that process has ended: pass it again")


def pass_data(data: Any) -> str:
    """The text by which a recipe names data.

    Edge case: Data is read more than once, so that a generator is refused: it can be read once only. Two
        objects that begin alike have different names, so that neither is taken for the other one.

    Example:
        >>> pass_data("calib.npz"), pass_data({"x": np.zeros((4, 3), np.float32)}).rpartition(":")[2][:5]
        ('calib.npz', 'dict_')
    """
    if isinstance(data, (str, Path)):
        return str(data)
    kind, make = type(data).__name__, _batches(data)
    is_identified = hasattr(data, "__array__") or isinstance(data, (Mapping, tuple, list))
    digest, number = hashlib.sha256(), -1
    for number, batch in enumerate(make()):
        _update(digest, batch, f"batch {number} of the {kind}")
        if not is_identified:
            break
    if number < 0:
        raise EmptyDataError(f"the {kind} has no batches", hint="pass at least one batch")
    digest.update(str(len(data) if hasattr(data, "__len__") else "").encode())
    return _keep(kind, digest.hexdigest(), PassedData(data, make, is_identified))


def _update(digest: Any, batch: Any, where: str) -> None:
    arrays, labels = as_arrays(batch, where)
    for name, array in sorted({**arrays, **({"label": labels} if labels is not None else {})}.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())


def pass_model(model: Any, settings: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The file of a model, and the settings with what builds it.

    A model in memory is written to a folder for temporary files, which is removed when the process ends.
    """
    if model is None or isinstance(model, (str, Path)):
        return (Path(model) if model is not None else None), dict(settings)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return onnx_file(model), dict(settings)
    if "arch" in settings:
        raise UsageError(
            "arch builds the module of a state dict, and a module was passed", hint="leave it out"
        )
    name = type(model).__name__
    path = _folder() / f"{name}.pt"
    torch.save(model.state_dict(), path)
    # A copy, because the caller's module stays as it is: in training mode, and on its device.
    arch = _keep(
        name, hashlib.sha256(path.read_bytes()).hexdigest(), lambda: copy.deepcopy(model).cpu().eval()
    )
    return path, {**settings, "arch": arch}


def onnx_file(model: Any) -> Path:
    """The file of an ONNX model; one in memory is written."""
    if isinstance(model, (str, Path)):
        return Path(model)
    import onnx
    import onnx_ir as ir

    if not isinstance(model, (onnx.ModelProto, ir.Model)):
        hint = "pass one of these"
        if isinstance(model, Mapping):
            hint = (
                "of a state dict, pass the module that has loaded it, or its file with arch='model.py:build'"
            )
        raise UsageError(f"the model is of type {type(model).__name__}, expected {_MODELS}", hint=hint)
    path = _folder() / "model.onnx"
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, path)
    else:
        ir.save(model, path)
    return path


def _batches(data: Any) -> Callable[[], Iterable[Any]]:
    kind = type(data).__name__
    if hasattr(data, "__array__") or isinstance(data, (Mapping, tuple)):
        return lambda: [data]
    if isinstance(data, Iterator):
        raise UsageError(
            f"the data is a {kind}, which can be read only once, and data is read more than once",
            hint="pass a list of batches, or the function that makes the generator, without calling it",
        )
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.Dataset):
        return lambda: _samples(data)
    if isinstance(data, Iterable):
        return lambda: data
    if callable(data):
        found: Callable[[], Iterable[Any]] = data
        return found
    raise UsageError(f"the data is of type {kind}, expected {_DATA}", hint="pass one of these")


def _samples(data: Any) -> Iterator[Any]:
    """Yield the samples of a data set of PyTorch, each as a batch of one."""
    items = data if hasattr(data, "__iter__") else (data[index] for index in range(len(data)))
    yield from map(_as_batch_of_one, items)


def _as_batch_of_one(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {name: _as_batch_of_one(value) for name, value in item.items()}
    if isinstance(item, (tuple, list)):
        return tuple(_as_batch_of_one(value) for value in item)
    return np.asarray(item)[None]


def _keep(kind: str, digest: str, make: Callable[[], Any]) -> str:
    first = name = f"{re.sub(r'[^0-9A-Za-z]', '', kind)}_{digest[:16]}"
    number = 1
    while _is_another(_FACTORIES.get(name), make):
        number += 1
        name = f"{first}_{number}"
    _FACTORIES[name] = make
    return f"{__name__}:{name}"


def _is_another(kept: Callable[[], Any] | None, make: Callable[[], Any]) -> bool:
    """Whether a name is that of another object, of which only the beginning is known to be the same."""
    if not isinstance(kept, PassedData) or not isinstance(make, PassedData) or kept.is_identified:
        return False
    return kept.data is not make.data


def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="ptq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


PathLike = str | Path
ModelLike = PathLike | Any  # A file, a ``torch.nn.Module``, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
# Settings of the evaluation by the names that they have where there are no others.
EVALUATION_NAMES = {"data": "eval_data", "samples": "eval_samples"}


def request_of(
    settings: Settings, model: ModelLike | None, recipe: PathLike | None, preset: str | None
) -> Request:
    """A request with settings by the names of their options."""
    path, found = pass_model(model, settings)
    for name in ("data", "eval_data"):
        if name in found:
            found[name] = pass_data(found[name])
    if isinstance(values := found.get("input"), Mapping):
        found["input"] = {name: _plain(value) for name, value in values.items()}
    return Request(
        settings=found, model=path, recipe_file=Path(recipe) if recipe is not None else None, preset=preset
    ).by_user()


def as_path(path: PathLike | None) -> Path | None:
    """A path, or None if there is none."""
    return Path(path) if path is not None else None


def _plain(value: Any) -> Any:
    """A number, an array or a tensor as the number or the lists that a recipe can hold."""
    return value.tolist() if hasattr(value, "tolist") else value


def evaluation_request(settings: Settings, recipe: PathLike | None, preset: str | None) -> Request:
    """A request of a function that reads evaluation data alone.

    ``data`` and ``samples`` mean ``eval_data`` and ``eval_samples``, as they do on the command line.

    Example:
        >>> evaluation_request({"samples": 8}, None, None).settings
        {'eval_samples': 8}
    """
    found = dict(settings)
    for name, meant in EVALUATION_NAMES.items():
        if name in found and meant in found:
            raise UsageError(
                f"'{name}' and '{meant}' are both given, and mean the same here", hint=f"give only '{meant}'"
            )
    renamed = {EVALUATION_NAMES.get(name, name): value for name, value in found.items()}
    return request_of(cast("Settings", renamed), None, recipe, preset)


def as_model_path(model: ModelLike | None) -> Path | None:
    """The path of an ONNX model, which is written if it is in memory; None if there is none."""
    return onnx_file(model) if model is not None else None

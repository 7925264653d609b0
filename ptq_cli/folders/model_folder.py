"""The files of a model that is a folder, and where those of the quantized folder lie."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ptq_cli.amax.overrides import Meant
from ptq_cli.core.errors import InputFileError, ModelFolderError
from ptq_cli.core.files import Content
from ptq_cli.core.read_files import is_folder
from ptq_cli.models.files.stored import StoredModel, external_files, require_external_data
from ptq_cli.models.files.storing import share_constants
from ptq_cli.models.loading.source import hub_weights
from ptq_cli.models.pair_operators import QUANTIZING
from ptq_cli.qdq.read.quantized_file import MetadataKey
from ptq_cli.recipe.model_names import KNOWN_SUFFIXES, MODEL_STEM
from ptq_cli.setup.resolve import Request, resolve
from ptq_cli.setup.run_directory import DEFAULT_RUN, RunDirectory

_SUFFIX = ".onnx"
HUB_PLACE = Path("onnx")  # of ONNX files in a folder of the hub, as Transformers.js looks for them
WEIGHTS_INDEX = "*.safetensors.index.json"
TOKENIZER = "tokenizer.json"
# Configurations and tokenizers, which a model is loaded with.
CARRIED = ("*.json", "*.jinja", "*.model", "*.spm", "vocab*.txt", "merges.txt", "LICENSE*")
_SPLIT = re.compile(r"(?P<base>.+)_(?P<suffix>[^_]+)")
_OPERATORS = (*QUANTIZING, "MatMulNBits", "GatherBlockQuantized", "MatMulBnb4")


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A folder of ONNX files, or of weights that transformers reads; all paths but its own start there.

    Attributes:
        files: float models, those that read a cache last, by the place that quantized ones take.
        moved: where float models are that lie elsewhere.
        left_out: ONNX files that are quantized already.
        data: of each float model, the files beside it that hold its constants.
        layers: of each float model, what overrides may mean its layers and their tensors by.
    """

    path: Path
    files: tuple[Path, ...]
    left_out: tuple[Path, ...]
    carried: tuple[Path, ...]
    data: Mapping[Path, frozenset[Path]]
    layers: Mapping[Path, Sequence[Meant]]
    moved: Mapping[Path, Path] = field(default_factory=dict)

    @property
    def is_hub(self) -> bool:
        """Whether it has the form of the hub: models below ``onnx``, beside their configuration."""
        return any(file.parent == HUB_PLACE for file in self.files)

    def source(self, file: Path) -> Path:
        """Where a float model is."""
        return self.path / self.moved.get(file, file)

    def shown(self, file: Path) -> Path:
        """A float model as messages name it: by its path in the folder, or by the folder's own name."""
        place = self.moved.get(file, file)
        return place if place != Path() else Path(self.path.resolve().name)

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer, if there is one."""
        return next((self.path / file for file in self.carried if file.name == TOKENIZER), None)

    def inputs(self) -> dict[str, Path]:
        """All files of the float models, by what they are."""
        files = {f"the model's {file.as_posix()}": self.source(file) for file in self.files}
        return files | {f"the model's {path.name}": path for found in self.data.values() for path in found}

    def bytes(self, files: Iterable[Path]) -> int:
        """How many bytes float models have, with their constants, each file once."""
        names = set(files)
        data = {item for file in names for item in self.data[file]}
        files = [*map(self.source, names), *data]
        return sum(item.stat().st_size for item in files if item.is_file())

    def groups(self) -> list[tuple[Path, ...]]:
        """The files in groups that share a file of constants and a folder; one alone is a group.

        Example:
            >>> a, b, c = Path("a.onnx"), Path("b.onnx"), Path("c.onnx")
            >>> data = {a: frozenset([Path("x")]), b: frozenset(), c: frozenset([Path("x")])}
            >>> none = {"left_out": (), "carried": (), "layers": {}}
            >>> folder = ModelFolder(path=Path(), files=(a, b, c), data=data, **none)
            >>> [[file.stem for file in group] for group in folder.groups()]
            [['a', 'c'], ['b']]
        """
        found: list[tuple[list[Path], set[Path]]] = []
        for file in self.files:
            mine = set(self.data[file])
            others = [group for group in found if group[1] & mine and group[0][0].parent == file.parent]
            merged = [item for group in others for item in group[0]]
            names = set().union(mine, *(group[1] for group in others))
            found = [group for group in found if group not in others]
            found.append(([*merged, file], names))
        return sorted((tuple(files) for files, _ in found), key=lambda group: self.files.index(group[0]))


def names_folder(request: Request) -> bool:
    """Tell whether the model of a request, or of the recipe that it leaves it to, is a folder.

    Example:
        >>> [names_folder(Request(settings={}, model=Path(name))) for name in (".", "model.onnx")]
        [True, False]
    """
    path = request.model
    if path is None and request.given is None:
        named = resolve(request).recipe.model.path
        path = Path(named) if named is not None else None
    return path is not None and is_folder(path)


def hub_folder(path: Path, outputs: Collection[Path] = (), suffix: str = "") -> ModelFolder:
    """A folder, or a single file, whose quantized models get the places that they have on the hub."""
    if path.is_file():
        read = _read(path) or (frozenset(), [])
        return _alone(path.parent, Path(path.name), (), *read)
    folder = open_folder(path, outputs, suffix)
    places = {file: HUB_PLACE / file.name for file in folder.files}
    return replace(
        folder,
        files=tuple(places.values()),
        data={places[file]: data for file, data in folder.data.items()},
        layers={places[file]: layers for file, layers in folder.layers.items()},
        moved={place: folder.moved.get(file, file) for file, place in places.items()},
    )


def _alone(
    path: Path, model: Path, carried: Sequence[Path], data: frozenset[Path], layers: Sequence[Meant]
) -> ModelFolder:
    """A folder of one model, whose quantized form gets its place on the hub."""
    place = HUB_PLACE / f"{MODEL_STEM}{_SUFFIX}"
    return ModelFolder(
        path=path,
        files=(place,),
        left_out=(),
        carried=tuple(carried),
        data={place: data},
        layers={place: layers},
        moved={place: model},
    )


def open_folder(path: Path, outputs: Collection[Path] = (), suffix: str = "") -> ModelFolder:
    """Find the files of a model that is a folder: those in it, and in the folders directly inside it.

    Without a float ONNX file, it may be one whose weights transformers reads.

    What lies in ``outputs`` belongs to no model. Files with ``suffix`` are quantized already, as those with a
    known one.
    """
    found = _files(path, {item.resolve() for item in outputs} - {path.resolve()})
    models = _models(found)
    read = {item: None if _is_named(item, models, suffix) else _read(item) for item in models}
    left_out = [item.relative_to(path) for item, parts in read.items() if parts is None]
    floats = {item.relative_to(path): parts for item, parts in read.items() if parts is not None}
    carried = [item.relative_to(path) for item in found if any(map(item.match, CARRIED))]
    if not floats and (weights := hub_weights(path)):
        # The index of the weights' files says nothing of the quantized ones.
        kept = [file for file in carried if not file.match(WEIGHTS_INDEX)]
        return _alone(path, Path(), kept, frozenset(weights), [])
    if not floats:
        raise _empty(path, left_out)
    return ModelFolder(
        path=path,
        files=tuple(sorted(floats, key=_turn)),
        left_out=tuple(left_out),
        carried=tuple(carried),
        data={place: data for place, (data, _) in floats.items()},
        layers={place: layers for place, (_, layers) in floats.items()},
    )


def quantized_files(path: Path) -> tuple[Path, ...]:
    """The quantized models of a folder and of the folders directly inside it, by their names."""
    found = tuple(item for item in _models(_files(path, ())) if _read(item) is None)
    if not found:
        raise ModelFolderError(
            f"model '{path}' is a folder without quantized ONNX files",
            hint="quantize it first, as ptq quantize does, or name a file",
        )
    return found


def base_name(file: Path) -> str:
    """The name of the float model that a quantized one is named after.

    Example:
        >>> base_name(Path("decoder_model_q4.onnx")), base_name(Path("decoder_model.onnx"))
        ('decoder_model', 'decoder_model')
    """
    split = _SPLIT.fullmatch(file.stem)
    return split["base"] if split is not None and split["suffix"] in KNOWN_SUFFIXES else file.stem


def _models(files: Iterable[Path]) -> list[Path]:
    return [item for item in files if item.suffix == _SUFFIX and not item.name.startswith(".")]


def _files(path: Path, ours: Collection[Path]) -> list[Path]:
    """The files of a folder and of those directly inside it, but those that commands write to."""
    try:
        folders = [path, *(item for item in sorted(path.iterdir()) if _is_part(item, ours))]
        return [item for folder in folders for item in sorted(folder.iterdir()) if item.is_file()]
    except OSError as error:
        raise InputFileError(
            f"model '{path}' cannot be read: {(error.strerror or str(error)).lower()}",
            hint="check its permissions",
        ) from error


def _is_part(folder: Path, ours: Collection[Path]) -> bool:
    if not folder.is_dir() or folder.name.startswith(".") or folder.name == DEFAULT_RUN.name:
        return False
    return folder.resolve() not in ours and not RunDirectory(folder).float_model.exists()


def _is_named(file: Path, models: Sequence[Path], suffix: str) -> bool:
    """Tell whether a file has the name of a quantized one, beside that of the float one."""
    split = _SPLIT.fullmatch(file.stem)
    if split is None or split["suffix"] not in (*KNOWN_SUFFIXES, suffix):
        return False
    return file.with_name(f"{split['base']}{_SUFFIX}") in models


def _read(file: Path) -> tuple[frozenset[Path], list[Meant]] | None:
    """The files that hold a model's constants, and its layers; None if the model is quantized."""
    try:
        model = onnx.load(file, load_external_data=False)
    except (DecodeError, ValueError, RuntimeError):
        return frozenset(), []  # Whoever opens it says what is wrong with it.
    nodes = list(_nodes(model.graph))
    # Of ptq's own, one whose weights alone are integers may have none of these operators.
    told = any(item.key == MetadataKey.TARGET for item in model.metadata_props)
    if told or any(node.op_type in _OPERATORS for node in nodes):
        return None
    require_external_data(model, file)
    layers = [Meant((node.name, *node.input, *node.output), (node.op_type,)) for node in nodes]
    return frozenset(item.resolve() for item in external_files(model, file.parent)), layers


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _turn(file: Path) -> tuple[bool, str]:
    """Sort files: a weight that several files hold is decided where the tokens of a text run together."""
    return "past" in file.stem or "merged" in file.stem, file.as_posix()


def _empty(path: Path, left_out: Sequence[Path]) -> ModelFolderError:
    if left_out:
        names = ", ".join(f"'{item.as_posix()}'" for item in left_out)
        return ModelFolderError(
            f"model '{path}' holds no float ONNX files: {names} are quantized already",
            hint="name the folder of the float models that they were made from",
        )
    return ModelFolderError(
        f"model '{path}' is a folder without ONNX files",
        hint="export the model to ONNX first, as optimum-cli export onnx does, or name a file; of "
        "config.json with model.safetensors, transformers can build encoders",
    )


_DATA_SUFFIX = ".onnx_data"  # of files of constants, as Transformers.js and Optimum name them


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """The files of quantized models.

    Attributes:
        models: each model as its files hold it, by the path of its float model in the folder.
        shared: number of constants that several models read from one file.
    """

    files: Mapping[Path, Content]
    models: Mapping[Path, StoredModel]
    shared: int
    saved: int

    @property
    def bytes(self) -> int:
        """How many bytes all files have."""
        sizes = [
            len(item) if isinstance(item, bytes) else item.stat().st_size for item in self.files.values()
        ]
        return sum(sizes)


def lay_out(
    folder: ModelFolder, models: Mapping[Path, StoredModel], outputs: Mapping[Path, Path], suffix: str
) -> FolderLayout:
    """The files of quantized models.

    An empty ``suffix`` keeps the names of the float models.
    """
    files: dict[Path, Content] = {}
    placed: dict[Path, StoredModel] = {}
    shared = saved = 0
    for group in folder.groups():
        stored = [models[file] for file in group]
        if len(group) > 1 or stored[0].data:
            place = outputs[group[0]].parent
            found = share_constants(stored, place, _data_name(folder, group, suffix))
            stored, shared, saved = list(found.models), shared + found.shared, saved + found.saved
        for file, model in zip(group, stored, strict=True):
            placed[file] = model
            files |= model.files(outputs[file])
    return FolderLayout(files=files, models=placed, shared=shared, saved=saved)


def _data_name(folder: ModelFolder, group: Sequence[Path], suffix: str) -> str:
    """The name of a group's constants: the model's, or that of the file that float models share."""
    stem = group[0].stem
    if len(group) > 1:
        first = min(path.name for file in group for path in folder.data[file])
        stem = Path(first).stem.removesuffix(_SUFFIX)
    return f"{'_'.join(filter(None, (stem, suffix)))}{_DATA_SUFFIX}"


def carried_files(folder: ModelFolder, output: Path) -> list[Path]:
    """The configurations and tokenizers that have to be copied; none into the folder itself."""
    same = os.path.realpath
    return [file for file in folder.carried if same(folder.path / file) != same(output / file)]

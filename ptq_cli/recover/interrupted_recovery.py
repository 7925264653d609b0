"""The checkpoint of a recovery: what an interrupted one has chosen, and a later run continues from."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptq_cli.collectors.calibration_file import Calibration, statistics_digest
from ptq_cli.core.container import Arrays, Container, map_file
from ptq_cli.core.errors import InputFileError, PtqError
from ptq_cli.core.files import atomic_write
from ptq_cli.core.progress import Progress, ProgressCallback
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.write.site_parameters import DecidedBias, DecidedConstants, Parameters
from ptq_cli.recover.layer_state import SolvedLayer
from ptq_cli.recover.quantized_layer import QuantizedLayer
from ptq_cli.recover.recovery_context import RECOVER_STAGE
from ptq_cli.setup.resumable import Checkpoints, read_checkpoint
from ptq_cli.setup.run_directory import library_versions

_CONTAINER = Container(
    format="ptq.recovery",
    version=1,
    error=InputFileError,
    what="a checkpoint of a recovery",
    made_by="`ptq export --recover` writes one while it runs",
    again="start again with --set run.restart=true",
    is_flat=False,
)
_WORK = "recovery"
_Identity = Mapping[str, str]  # What a rung is of, by name: a checkpoint of another is ignored


def rung_identity(rung: str, calibration: Calibration, parameters: Parameters) -> dict[str, str]:
    """Digests of everything that the choices of a rung depend on, by name.

    Ranges, layers in float, and settings of weights are all in what was decided before the rung.
    """
    return {
        "the rung": rung,
        "the float model": calibration.provenance.model,
        "the calibration": statistics_digest(calibration.statistics),
        "the data": str(calibration.provenance.data),
        "the recipe": _decided_digest(parameters),
        "a library": str(library_versions()),
    }


def _decided_digest(parameters: Parameters) -> str:
    found = hashlib.sha256()
    for name, own in sorted(parameters.activations.items()):
        found.update(f"{name} {own.integers} {own.scale!r} {own.zero_point!r}".encode())
    for site, item in parameters.decided.items():
        found.update(repr(site).encode())
        found.update(np.ascontiguousarray(item.stored.array()).view(np.uint8).data)
        if item.parameters is not None:
            found.update(np.ascontiguousarray(item.parameters.scale).view(np.uint8).data)
            found.update(np.ascontiguousarray(item.parameters.zero_point).view(np.uint8).data)
    return found.hexdigest()


class RecoveryCheckpoint:
    """Writes the layers of a rung once that is due, and finds those of an interrupted run.

    At least ``every`` seconds lie between two writes.
    """

    def __init__(self, path: Path, every: float, identity: _Identity, progress: ProgressCallback) -> None:
        self._path, self._identity = path, dict(identity)
        self._progress = progress
        self._checkpoints = Checkpoints(path, _WORK, every, self._tell)

    def _tell(self, note: str) -> None:
        self._progress(Progress(RECOVER_STAGE, 0, None, note))

    def earlier(self, layers: Mapping[str, QuantizedLayer], parameters: Parameters) -> dict[str, SolvedLayer]:
        """Choices of an interrupted run for these layers."""
        known: dict[str, SolvedLayer] = {}

        def refusal(found: tuple[dict[str, Any], Arrays]) -> str:
            header, arrays = found
            try:
                changed = [key for key, own in self._identity.items() if header["identity"].get(key) != own]
                if not changed:
                    known.update(_solved(header["layers"], arrays, layers, parameters))
            # A file from outside: what does not fit is a reason to start over.
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, PtqError) as error:
                return f"it is damaged ({type(error).__name__})"
            return f"{changed[0]} changed since" if changed else ""

        if read_checkpoint(self._path, _WORK, _read, refusal, self._tell) is None:
            return {}
        count = f"{len(known)} of {len(layers)} layers"
        self._tell(f"continuing an earlier recovery after {count}; --set run.restart=true starts again")
        return known

    def note(self, solved: Mapping[str, SolvedLayer], *, now: bool = False) -> None:
        """Write these layers if a checkpoint is due, or ``now``."""
        if now or self._checkpoints.is_due():
            self._checkpoints.write(lambda path: self._save(solved, path))

    def _save(self, solved: Mapping[str, SolvedLayer], path: Path) -> None:
        entries: list[dict[str, Any]] = []
        arrays: dict[str, Array] = {}
        for index, (name, item) in enumerate(solved.items()):
            entry = {"name": name, "before": item.before, "after": item.after}
            entries.append(entry | {"damped": item.damped, "changed": item.changed})
            arrays |= {f"{index}.{key}": array for key, array in _arrays(item.decided)}
        header = {"identity": self._identity, "layers": entries}
        with atomic_write(path) as partial, partial.open("wb") as file:
            for part in _CONTAINER.parts(header, arrays):
                file.write(part)


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    content = map_file(path, _CONTAINER.what, _CONTAINER)
    return _CONTAINER.parse(content, str(path), lambda header, arrays: (header, arrays))


def _arrays(decided: DecidedConstants) -> Iterator[tuple[str, Array]]:
    """Yield what was decided of one layer: its weight, and its bias if it has one that was changed."""
    for item in decided.decided.values():
        assert item.parameters is not None  # noqa: S101 - values of a codebook are not chosen again
        yield "integers", item.stored.array()
        yield "scale", item.parameters.scale
        yield "zeros", item.parameters.zero_point
    for bias in decided.biases.values():
        yield "bias", bias.integers
        yield "bias_scale", bias.scale
    for values in decided.floats.values():
        yield "float_bias", values


def _solved(
    entries: Any, arrays: Arrays, layers: Mapping[str, QuantizedLayer], parameters: Parameters
) -> Iterator[tuple[str, SolvedLayer]]:
    for index, entry in enumerate(entries):
        layer, own = layers[entry["name"]], {}
        for key in ("integers", "scale", "zeros", "bias", "bias_scale", "float_bias"):
            if (array := arrays.get(f"{index}.{key}")) is not None:
                own[key] = np.array(array)  # Not mapped: the file is written again.
        decided = _decided(layer, own, parameters)
        yield (
            layer.name,
            SolvedLayer(
                before=float(entry["before"]),
                after=float(entry["after"]),
                damped=bool(entry["damped"]),
                changed=bool(entry["changed"]),
                decided=decided,
            ),
        )


def _decided(layer: QuantizedLayer, own: Mapping[str, Array], parameters: Parameters) -> DecidedConstants:
    item, bias = parameters.decided[layer.site], layer.bias
    if own["integers"].shape != item.stored.shape:
        raise ValueError("a weight has another shape")
    weights = {layer.site: item.with_integers(layer.site, own["integers"], own["scale"], own["zeros"])}
    if isinstance(bias, str) and "float_bias" in own:
        return DecidedConstants(decided=weights, floats={bias: own["float_bias"]})
    if bias is not None and not isinstance(bias, str) and "bias" in own:
        found = DecidedBias(own["bias"].astype(np.int32), own["bias_scale"].astype(np.float32))
        return DecidedConstants(decided=weights, biases={bias: found})
    return DecidedConstants(decided=weights)

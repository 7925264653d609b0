"""The folder of cases: its list with hashes and versions, and how the folder is written and read."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ptq_cli.core.documents import read_document, to_json
from ptq_cli.core.errors import CasesError, InputFileError, OutputFileError, first_line
from ptq_cli.core.files import Content, write_together
from ptq_cli.core.read_files import is_folder, read_file, require_file, sha256_file
from ptq_cli.core.tensors import Array
from ptq_cli.devices.integer_kernels import Expected
from ptq_cli.evaluation.document.device_document import AGAIN, MODEL, Case, Manifest
from ptq_cli.models.files.stored import StoredModel

MANIFEST = "manifest.json"
RUNNERS = {
    "run.py": "run.py",
    "run.mjs": "run.mjs",
    "cases.mjs": "cases.mjs",
    "index.html": "index.html",
    "README.md": "pack_readme.md",
}
"""By their name in the folder, the files beside this one that are copied there."""
DATA = "model.data"  # the file of the constants of a model that has them apart
INPUT, OUTPUT, TOLERANCE, REFERENCE = "input", "output", "tolerance", "reference"
"""What a tensor of a case is, in the middle of its name: RUN:KIND:NAME."""


@dataclass(frozen=True, kw_only=True)
class CaseFiles:
    """A case before it is written."""

    node: str
    op: str
    exact: bool
    model: StoredModel
    runs: Sequence[Mapping[str, Array]]

    def written(self, number: int) -> tuple[Case, dict[str, Content]]:
        """The entry of the case and its files; number 0 is the whole file."""
        name = f"kernel-{number:03}" if number else MODEL
        stem = f"kernels/{name}" if number else name
        arrays = {
            f"{run}:{key}": np.asarray(array, order="C")
            for run, tensors in enumerate(self.runs)
            for key, array in tensors.items()
        }
        tensors: bytes = save(arrays)
        case = Case(
            name=name,
            node=self.node,
            op=self.op,
            exact=self.exact,
            runs=len(self.runs),
            model=f"{stem}.onnx",
            model_sha256=hashlib.sha256(self.model.content).hexdigest(),
            data=DATA if self.model.data else "",
            data_sha256=sha256_file(self.model.data[0]) if self.model.data else "",
            tensors=f"{stem}.safetensors",
            tensors_sha256=hashlib.sha256(tensors).hexdigest(),
        )
        files: dict[str, Content] = {case.model: self.model.content, case.tensors: tensors}
        if self.model.data:
            files[DATA] = self.model.data[0]
        return case, files


def run_tensors(
    inputs: Mapping[str, Array], expected: Mapping[str, Expected], reference: Mapping[str, Array]
) -> dict[str, Array]:
    """The tensors of one run by KIND:NAME."""
    found: dict[str, Array] = {f"{INPUT}:{name}": array for name, array in inputs.items()}
    for name, item in expected.items():
        found |= {f"{OUTPUT}:{name}": item.value, f"{TOLERANCE}:{name}": item.tolerance}
    return found | {f"{REFERENCE}:{name}": array for name, array in reference.items()}


def write_cases(folder: Path, cases: Sequence[CaseFiles], about: Mapping[str, Any]) -> Manifest:
    """Write a folder of cases, the whole file first, with its runners; earlier cases there are replaced.

    ``about`` has the other fields of the manifest.
    """
    if is_folder(folder) and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise OutputFileError(
            f"'{folder}' holds other files, expected a new folder or earlier cases",
            hint="name a new folder",
        )
    entries, contents = [], dict[Path, Content]()
    for number, case in enumerate(cases):
        entry, files = case.written(number)
        entries.append(entry)
        contents |= {folder / name: content for name, content in files.items()}
    manifest = Manifest(cases=tuple(entries), machine=platform.machine(), **about)
    here = Path(__file__).parent
    contents |= {folder / name: (here / source).read_bytes() for name, source in RUNNERS.items()}
    contents[folder / MANIFEST] = to_json(manifest).encode()
    write_together(contents)
    for path in (folder / DATA, *(folder / "kernels").glob("kernel-*")):
        if path not in contents:
            path.unlink(missing_ok=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder of cases."""
    path = folder / MANIFEST
    try:
        manifest = read_document(Manifest, path)
    except InputFileError as error:
        raise InputFileError(error.message, hint="name the folder that ptq verify --pack wrote") from error
    if not manifest.cases or manifest.cases[0].op:
        raise CasesError(f"manifest '{path}' has no case of the whole file", hint=AGAIN)
    return manifest


def read_tensors(folder: Path, case: Case) -> list[dict[str, dict[str, Array]]]:
    """The tensors of each run of a case, by kind and name."""
    for name, sha256 in case.files:
        if sha256_file(require_file(folder / name, "case")) != sha256:
            raise CasesError(
                f"'{folder / name}' does not have the hash that {MANIFEST} says: it was changed or cut off",
                hint=AGAIN,
            )
    try:
        runs: list[dict[str, dict[str, Array]]] = [{} for _ in range(case.runs)]
        for key, array in load(read_file(folder / case.tensors, "case")).items():
            run, kind, name = key.split(":", 2)
            runs[int(run)].setdefault(kind, {})[name] = array
    except (SafetensorError, ValueError, IndexError) as error:
        raise CasesError(f"'{folder / case.tensors}' is damaged: {first_line(error)}", hint=AGAIN) from error
    return runs

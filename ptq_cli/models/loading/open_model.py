"""Open a model file of any kind: its content tells which."""

from pathlib import Path
from typing import TYPE_CHECKING

from ptq_cli.core.errors import ModelFormatError, PickleError
from ptq_cli.core.read_files import sha256_file
from ptq_cli.core.trust import model_key, require_trust
from ptq_cli.models.loading.source import ModelKind, detect_kind
from ptq_cli.recipe.locations import TORCHSCRIPT
from ptq_cli.recipe.sections import ModelSettings

if TYPE_CHECKING:
    import torch
from ptq_cli.models.loading.source import ModelSource, SourceFile


def open_model(path: Path, settings: ModelSettings) -> ModelSource:
    """Load a model file, whose content tells what it is, or a folder that transformers builds."""
    kind = detect_kind(path)
    if kind is ModelKind.HUB:
        from ptq_cli.models.loading.hub_source import open_hub_folder

        return open_hub_folder(path, settings.inputs)
    file = SourceFile(path, kind, sha256_file(path))
    if file.kind is ModelKind.ONNX:
        from ptq_cli.models.fixed_inputs import fix_inputs
        from ptq_cli.models.loading.onnx_source import OnnxSource, load_onnx

        model = load_onnx(path)
        return OnnxSource(file, model, fix_inputs(model, settings.inputs, path.name))
    return _open_torch(file, settings)


def _open_torch(file: SourceFile, settings: ModelSettings) -> ModelSource:
    # PyTorch takes a second to import, and an ONNX model needs none of it.
    from ptq_cli.models.loading.torch_sources import ModuleSource, ProgramSource, TorchScriptSource

    if file.kind is ModelKind.EXPORTED_PROGRAM:
        program = _load_program(file.path, trusted=settings.trust_pickle)
        return ProgramSource(file, program, settings.inputs)
    if file.kind is ModelKind.TORCHSCRIPT:
        require_trust(model_key(file.path, TORCHSCRIPT), file.sha256, str(file.path))
        return TorchScriptSource(file, _load_torchscript(file.path), values=settings.inputs)
    from ptq_cli.models.loading.torch_checkpoint import load_checkpoint

    module, notes = load_checkpoint(file.path, file.kind, settings)
    return ModuleSource(file, module, values=settings.inputs, notes=notes)


def _load_program(path: Path, *, trusted: bool) -> "torch.export.ExportedProgram":
    import torch

    from ptq_cli.models.loading.archive_safety import require_safe_archive
    from ptq_cli.models.loading.torch_checkpoint import require_trusted_pickle
    from ptq_cli.models.quiet_export import quiet_exporter

    try:
        require_safe_archive(path)
    except PickleError:
        if not trusted:
            raise
        require_trusted_pickle(path)
    try:
        # An open stream: given a path, torch.export.load minds the file's name.
        with quiet_exporter(), path.open("rb") as stream:
            return torch.export.load(stream)
    except Exception as error:
        raise ModelFormatError(
            f"'{path.name}' cannot be loaded as a torch.export archive: {type(error).__name__}",
            hint=f"it may be damaged, or written by a PyTorch version other than {torch.__version__}",
        ) from error


def _load_torchscript(path: Path) -> "torch.jit.ScriptModule":
    import torch

    from ptq_cli.models.quiet_export import quiet_exporter

    try:
        with quiet_exporter():
            module: torch.jit.ScriptModule = torch.jit.load(  # type: ignore[no-untyped-call]
                path, map_location="cpu"
            )
    except Exception as error:  # a damaged archive raises anything, IndexError too
        raise ModelFormatError(
            f"'{path.name}' cannot be loaded as TorchScript", hint="it may be damaged; save it again"
        ) from error
    return module.eval()

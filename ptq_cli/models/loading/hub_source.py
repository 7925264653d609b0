"""A folder of the hub: a vision or text encoder that transformers builds from ``config.json`` and weights.

The library's own classes alone are built, by name, and weights are safetensors: nothing in the folder runs.
"""

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ptq_cli.core.errors import ModelFormatError, UsageError, first_line
from ptq_cli.core.read_files import hash_file
from ptq_cli.core.tensors import TensorSpec
from ptq_cli.models.batch_axes import Axes
from ptq_cli.models.loading.source import HUB_CONFIG, ModelKind, SourceFile, hub_weights
from ptq_cli.models.loading.torch_export import fix_exported, program_to_onnx
from ptq_cli.models.loading.torch_sources import ModuleSource
from ptq_cli.models.quiet_export import quiet_exporter

PIXELS = "pixel_values"
# Inputs of text encoders, by name: whether they are inputs also where no data name them.
_TEXT = {"input_ids": True, "attention_mask": True, "token_type_ids": False, "position_ids": False}
_FIRST = {"input_ids": _TEXT, PIXELS: {PIXELS: True}}
_DECODING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_ONNX_FIRST = "export it to ONNX first, as optimum-cli export onnx does"


class HubSource(ModuleSource):
    """An encoder of transformers."""

    def _required(self) -> dict[str, bool]:
        known = _FIRST[self.module.main_input_name]
        return {name: known[name] for name in super()._required() if name in known}

    @property
    def example_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs as the configuration has them; lengths of texts are open."""
        config = self.module.config
        if self.module.main_input_name != PIXELS:
            return tuple(TensorSpec(name, np.dtype(np.int64), (None, None)) for name in self.input_names)
        size = getattr(config, "image_size", None)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", 3)
        return (TensorSpec(PIXELS, np.dtype(np.float32), (None, channels, height, width)),)

    def _exported(self, tensors: dict[str, torch.Tensor], axes: Axes | None) -> ir.Model:
        if axes is None or self.module.main_input_name == PIXELS:
            return super()._exported(tensors, axes)
        # The tokens of a text are as many as it has.
        open_axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=self._longest())}
        program = torch.export.export(
            self.module, (), dict(tensors), dynamic_shapes=dict.fromkeys(tensors, open_axes), strict=False
        )
        return fix_exported(program_to_onnx(program, [*tensors]), self.values, self.file.path.name)

    def _longest(self) -> int | None:
        found = getattr(self.module.config, "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None


def open_hub_folder(folder: Path, values: Mapping[str, Any]) -> HubSource:
    """Build the encoder of a folder of the hub.

    Raises:
        UsageError: transformers is not installed.
        ModelFormatError: it is not an encoder that transformers itself has, or weights of it are missing.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(
            f"'{folder}' holds a model of transformers, which is not installed",
            hint=f"pip install 'ptq-cli[hub]', or {_ONNX_FIRST}",
        )
    weights, config = hub_weights(folder), _config(folder)
    digest = hashlib.sha256()
    for path in (folder / HUB_CONFIG, *weights):
        hash_file(digest, path)
    file = SourceFile(folder, ModelKind.HUB, digest.hexdigest())
    module = _built(folder, config)
    if getattr(module, "main_input_name", None) not in _FIRST:
        raise _refused(folder, f"its input is '{module.main_input_name}'")
    return HubSource(file, module, values=values)


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / HUB_CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(
            f"'{folder / HUB_CONFIG}' is not valid JSON: {first_line(error)}", hint="copy it again"
        ) from error
    return found if isinstance(found, dict) else {}


def _built(folder: Path, config: Mapping[str, Any]) -> Any:
    import transformers

    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if not name:
        raise _refused(folder, f"{HUB_CONFIG} names no architecture")
    if name.endswith(_DECODING) or config.get("is_encoder_decoder") or config.get("is_decoder"):
        raise _refused(folder, f"{name} is not an encoder")
    # Each of these would have the library fetch or run something that the user did not name.
    for key, file in (("quantization_config", ""), ("", "adapter_config.json")):
        if key in config or (file and (folder / file).exists()):
            raise _refused(folder, f"it has {f'a {key}' if key else file}")
    kind: Any = getattr(transformers, name, None)
    is_own = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_own:
        raise _refused(
            folder, f"transformers {transformers.__version__} has no {name}, and its code never runs"
        )
    try:
        with quiet_exporter():
            model, told = kind.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except Exception as error:
        raise _refused(folder, f"{type(error).__name__}: {first_line(error)}") from error
    if lost := sorted(map(str, (*told["missing_keys"], *told["mismatched_keys"]))):
        raise _refused(
            folder, f"its weights lack {lost[0]}" + (f" and {len(lost) - 1} more" if lost[1:] else "")
        )
    model.config.return_dict, model.config.use_cache = True, False
    return model.eval()


def _refused(folder: Path, why: str) -> ModelFormatError:
    return ModelFormatError(f"'{folder}' cannot be built by transformers: {why}", hint=_ONNX_FIRST)

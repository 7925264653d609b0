"""How a folder was quantized, in the keys that Optimum and Transformers.js's scripts write beside models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptq_cli.core.formats import FLOATS
from ptq_cli.evaluation.document.report_document import LayerEntry
from ptq_cli.recipe.check import weight_family
from ptq_cli.recipe.declaration import DYNAMIC, FLOAT, ROW, TENSOR
from ptq_cli.recipe.model_names import LOADER_DTYPES, suffix_of
from ptq_cli.recipe.quantizer_families import ScaledWeights
from ptq_cli.recipe.recovery_rungs import granularity_of, mode_of
from ptq_cli.setup.resolve import Resolved

# ONNX Runtime's names of types (``QuantType``), by ptq's.
_TYPES = {
    **{name: f"QI{name[1:]}" for name in ("int4", "int8", "int16")},
    **{name: f"QUI{name[2:]}" for name in ("uint4", "uint8", "uint16")},
    "float8e4m3fn": "QFLOAT8E4M3FN",
}


@dataclass(frozen=True)
class HubConfig:
    """A file of the folder, and what it says."""

    name: str
    says: dict[str, Any]

    def content(self, layers: Sequence[Sequence[LayerEntry]], folder: Path) -> bytes:
        """The file, with the layers of each model.

        Edge case:
            Forms of an earlier file of Transformers.js are kept: the models may lie side by side.
        """
        says = dict(self.says)
        if self.name == ORT_CONFIG:
            found = [layer for each in layers for layer in each]
            operators = {layer.op for layer in found if layer.integer}
            says["quantization"] = says["quantization"] | {
                "nodes_to_exclude": [
                    item.name for item in found if item.op in operators and not item.integer
                ],
                "operators_to_quantize": sorted(operators),
            }
        else:
            says["modes"] = list(dict.fromkeys([*_earlier_modes(folder / self.name), *says["modes"]]))
        return f"{json.dumps(says, indent=2)}\n".encode()


ORT_CONFIG, SCRIPT_CONFIG = "ort_config.json", "quantize_config.json"


def _earlier_modes(path: Path) -> list[str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["modes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # There is none, or it is not one of the script's.
    return [str(mode) for mode in found] if isinstance(found, list) else []


def hub_config(resolved: Resolved) -> HubConfig | None:
    """What is written beside the models of a recipe; None for a form that neither tool has words for.

    Weights alone have the keys of Transformers.js's ``QuantizationArguments``, integers those of Optimum's
    ``ORTConfig``. What a tool has a key for and ptq decides otherwise is null.

    Source:
        Transformers.js, ``scripts/convert.py`` and ``scripts/quantize.py``; Optimum,
        ``optimum/onnxruntime/configuration.py``.
    """
    recipe = resolved.recipe
    family, mode = weight_family(recipe.weights), mode_of(recipe.activations)
    if family.float_reason:
        return None
    scaled = family if isinstance(family, ScaledWeights) else None
    if mode == FLOAT:
        dtype = LOADER_DTYPES.get(suffix_of(recipe))
        says: dict[str, Any] = {
            "modes": [dtype],
            "per_channel": scaled is None or scaled.block_size is None,
            "reduce_range": None,
            "block_size": scaled.block_size if scaled is not None else None,
            "is_symmetric": scaled.symmetric if scaled is not None else True,
            "accuracy_level": None,
            "quant_type": None,
            "op_block_list": None,
        }
        return HubConfig(SCRIPT_CONFIG, says) if dtype is not None else None
    rule, is_dynamic = resolved.target.activation, mode == DYNAMIC
    activations = recipe.activations.dtype or rule.integers.name
    weights = recipe.weights.dtype or replace(resolved.target.weight.integers, bits=family.bits).name
    if activations not in _TYPES or weights not in _TYPES:
        return None
    by_rows = is_dynamic and granularity_of(recipe.activations) == ROW
    symmetric = rule.symmetric if recipe.activations.symmetric is None else recipe.activations.symmetric
    quantization: dict[str, Any] = {
        "is_static": not is_dynamic,
        "format": "QOperator" if is_dynamic else "QDQ",
        "mode": "IntegerOps" if is_dynamic else "QLinearOps",
        "activations_dtype": _TYPES[activations],
        "activations_symmetric": by_rows or (symmetric and not is_dynamic) or activations in FLOATS,
        "weights_dtype": _TYPES[weights],
        "weights_symmetric": True,
        "per_channel": getattr(family, "granularity", None) != TENSOR and recipe.weights.quantizer != "step",
        "reduce_range": False,
        "nodes_to_quantize": [],
        "nodes_to_exclude": [],
        "operators_to_quantize": [],
        "qdq_add_pair_to_weight": False,
        "qdq_dedicated_pair": False,
        "qdq_op_type_per_channel_support_to_axis": {"MatMul": 1},
    }
    says = {
        "one_external_file": True,
        "opset": None,
        "optimization": {},
        "quantization": quantization,
        "use_external_data_format": False,
    }
    return HubConfig(ORT_CONFIG, says)

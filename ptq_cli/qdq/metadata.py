"""Keys of an exported model's metadata: who made it, of what, and by which settings."""

import json

import onnx_ir as ir

FLOAT_SHA256 = "ptq.float_sha256"
STATISTICS_SHA256 = "ptq.statistics_sha256"
AMAX_METHOD = "ptq.amax_method"
AMAX_PERCENTILE = "ptq.amax_percentile"
WEIGHT_AMAX = "ptq.weight_amax"
OVERRIDES = "ptq.amax_overrides"
QUANTIZERS = "ptq.quantizers"
WEIGHTS = "ptq.weights"
ACTIVATIONS = "ptq.activations"
LAYERS = "ptq.layers"
PADDED_CHANNELS = "ptq.padded_channels"
TARGET = "ptq.target"
FLOAT_TYPE = "ptq.float_type"
RUNTIME_OPERATORS = "ptq.runtime_operators"
RECOVERY = "ptq.recovery"
RANGES = "ptq.ranges"
FLOAT_LAYERS = "ptq.float_layers"
RESCALED = "ptq.rescaled"
VERSION = "ptq.version"


def has_chosen_layers(model: ir.Model) -> bool:
    """Tell whether ptq wrote a model with layers that a user includes or excludes.

    Edge case:
        Overrides that are not a list of tables are not ptq's, and choose nothing.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["": 20]>
        ...     g (float[n] x) => (float[n] y) { y = Neg(x) }'''
        >>> model = ir.from_onnx_text(text)
        >>> model.metadata_props[OVERRIDES] = '[{"match": "quantize", "amax": "max"}]'
        >>> has_chosen_layers(model)
        False
        >>> model.metadata_props[OVERRIDES] = '[{"match": "head", "quantize": false}]'
        >>> has_chosen_layers(model)
        True
    """
    try:
        overrides = json.loads(model.metadata_props.get(OVERRIDES, "[]"))
    except (ValueError, RecursionError):
        return False
    tables = overrides if isinstance(overrides, list) else []
    return any(isinstance(table, dict) and "quantize" in table for table in tables)

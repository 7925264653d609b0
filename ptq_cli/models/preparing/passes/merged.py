"""Constants behind a layer, and affine maps, go into its weight and bias; the layer is equal to rounding."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptq_cli.models.graph_reading import FreshNames, input_at, rank_of, sole_reader
from ptq_cli.models.preparing.rewriting import (
    Floats,
    RewritePass,
    add_constant,
    drop,
    each_node,
    floats_of,
    is_float32,
    made_by,
    operand_beside,
    put_instead,
    set_constant,
    take_place,
)

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, kw_only=True)
class AffineLayer:
    """A Conv, ConvTranspose or Gemm with a constant weight.

    Attributes:
        bias: what it adds, one number a channel, with Gemm's ``beta`` applied; zeros where it has none.
        channels: how many output channels it has.
        rank: how many axes its output has; the channels' is axis 1.
        name: of its weight.
    """

    node: ir.Node
    weight: Floats
    bias: Floats
    channels: int
    rank: int
    name: str = ""

    def scaled(self, factor: Floats) -> Floats:
        """Return the weight with each output channel multiplied.

        Shapes: factor: (channels,). Of a grouped ConvTranspose, whose axis 1 counts one group's channels, the
            factors of a group go to the input channels of that group.
        """
        if self.node.op_type == "ConvTranspose":
            group = self.node.attributes.get_int("group", 1)
            inputs, outputs, *kernel = self.weight.shape
            grouped = self.weight.reshape(group, inputs // group, outputs, *kernel)
            ones = (1,) * len(kernel)
            return (grouped * factor.reshape(group, 1, outputs, *ones)).reshape(self.weight.shape)
        if self.node.op_type == "Gemm":
            return self.weight * (factor if _is_output_last(self.node) else factor[:, None])
        return self.weight * factor.reshape(-1, *(1,) * (self.weight.ndim - 1))

    def write(self, weight: Floats | None, bias: Floats, names: FreshNames) -> None:
        """Give the operator another bias, and another weight unless that is None."""
        dtype = self.weight.dtype
        if weight is not None:
            set_constant(self.node, 1, weight.astype(dtype), self.name, names)
        set_constant(self.node, 2, bias.astype(dtype), f"{self.name}_bias", names)
        self.node.attributes.pop("beta", None)


def affine_layer(node: ir.Node | None) -> AffineLayer | None:
    """Return the layer that a node is, or None where it is none or its parameters are not constant."""
    if node is None or node.op_type not in _LAYERS or node.domain != "":
        return None
    second, third = input_at(node, 1), input_at(node, 2)
    weight, bias = floats_of(second), floats_of(third)
    if second is None or weight is None or weight.ndim < 2 or (third is not None and bias is None):
        return None
    if node.op_type == "ConvTranspose" and weight.shape[0] % node.attributes.get_int("group", 1):
        return None
    channels = _channels(node, weight)
    if bias is None:
        bias = np.zeros(channels, weight.dtype)
    # Gemm's bias may be a matrix, not one number per channel; one number for all channels is one for each.
    if bias.size != 1 and not bias.size == bias.shape[-1] == channels:
        return None
    if node.op_type == "Gemm":
        bias = (bias * np.float32(node.attributes.get_float("beta", 1.0))).astype(weight.dtype)
    bias = np.broadcast_to(bias.reshape(-1), (channels,))
    rank = 2 if node.op_type == "Gemm" else weight.ndim
    return AffineLayer(
        node=node, weight=weight, bias=bias, channels=channels, rank=rank, name=second.name or node.op_type
    )


def per_channel(array: Floats, layer: AffineLayer) -> Floats | None:
    """Return an operand of a layer's output as one number a channel, or None where it is something else.

    Shapes: array: what broadcasts to the layer's output, (N, channels, …), without changing its shape.
    """
    if array.ndim > layer.rank:
        return None
    shape = (1,) * (layer.rank - array.ndim) + array.shape
    if shape[1] not in (1, layer.channels) or any(size != 1 for size in (shape[0], *shape[2:])):
        return None
    return np.broadcast_to(array.reshape(-1), (layer.channels,))


def _channels(node: ir.Node, weight: Floats) -> int:
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1] * node.attributes.get_int("group", 1))
    return int(weight.shape[1] if node.op_type == "Gemm" and _is_output_last(node) else weight.shape[0])


def _is_output_last(gemm: ir.Node) -> bool:
    return not gemm.attributes.get_int("transB", 0)


@dataclass(frozen=True)
class _Product:
    """A MatMul by a constant, with the Add of its bias and the bias's place among that one's inputs."""

    matmul: ir.Node
    add: ir.Node | None = None
    bias_index: int = 0

    @property
    def result(self) -> ir.Value:
        return (self.add or self.matmul).outputs[0]


def _fold(node: ir.Node, names: FreshNames) -> bool:
    """Fold Mul and Div by a constant into the MatMul before them, and into its bias where it has one.

    Requires: the MatMul's second operand and the bias are constants, the factor has one number for all
    columns or one for each, and nothing else reads what lies between. Layer scale, and half a feed-forward's
    result, are written so; PyTorch exports a Linear of more than two axes as MatMul and Add.
    """
    product, factor = _operands(node)
    if product is None or factor is None:
        return False
    weight = floats_of(product.matmul.inputs[1])
    bias = floats_of(product.add.inputs[product.bias_index]) if product.add is not None else None
    columns = weight.shape[-1] if weight is not None else 0
    if weight is None or factor.dtype != weight.dtype or factor.size not in (1, columns):
        return False
    # One number for each column lies on the last axis, and adds no axis to the result.
    if (factor.size > 1 and factor.shape[-1] != columns) or factor.ndim > (rank_of(product.result) or 0):
        return False
    if not np.all(np.isfinite(factor)) or (node.op_type == "Div" and np.any(factor == 0)):
        return False
    scale = (1 / factor if node.op_type == "Div" else factor).reshape(-1)
    name = product.matmul.name or "MatMul"
    set_constant(product.matmul, 1, (weight * scale).astype(weight.dtype), f"{name}.weight", names)
    if product.add is not None and bias is not None:
        scaled = (bias * scale).astype(weight.dtype)
        set_constant(product.add, product.bias_index, scaled, f"{name}.bias", names)
    take_place(product.result, node.outputs[0], names)
    drop(node)
    return True


MATMUL_FACTOR = RewritePass(
    "matmul_factor", "Mul by a constant into the MatMul before it", each_node(_fold, "Mul", "Div")
)


def _operands(node: ir.Node) -> tuple[_Product | None, Floats | None]:
    for index, source in enumerate(node.inputs):
        if source is None or (index == 1 and node.op_type == "Div") or sole_reader(source) is not node:
            continue
        product = _product(source)
        factor = floats_of(operand_beside(node, source))
        if product is not None and factor is not None:
            return product, factor
    return None, None


def _product(value: ir.Value) -> _Product | None:
    matmul = made_by(value, "MatMul")
    if matmul is not None:
        return _Product(matmul) if _has_weight(matmul) else None
    add = made_by(value, "Add")
    if add is None:
        return None
    for index, other in enumerate(add.inputs):
        source = operand_beside(add, other) if other is not None else None
        matmul = made_by(source, "MatMul")
        if source is None or matmul is None or not _has_weight(matmul) or sole_reader(source) is not add:
            continue
        bias, weight = floats_of(other), floats_of(matmul.inputs[1])
        if bias is not None and weight is not None and bias.dtype == weight.dtype:
            return _Product(matmul, add, index)
    return None


def _has_weight(matmul: ir.Node) -> bool:
    weight = floats_of(matmul.inputs[1])
    return weight is not None and weight.ndim >= 2 and floats_of(matmul.inputs[0]) is None


def _layer_and_constant(node: ir.Node) -> tuple[AffineLayer, Floats] | None:
    for index, source in enumerate(node.inputs):
        # A constant that is divided, or that something is subtracted from, is another function.
        if source is None or (index == 1 and node.op_type in ("Sub", "Div")):
            continue
        layer, other = affine_layer(source.producer()), operand_beside(node, source)
        array = floats_of(other)
        if layer is None or array is None or sole_reader(source) is not node:
            continue
        numbers = per_channel(array, layer)
        if numbers is None or array.dtype != layer.weight.dtype or not np.all(np.isfinite(numbers)):
            continue
        if node.op_type == "Div" and np.any(numbers == 0):
            continue
        return layer, numbers
    return None


def _fold_affine_map(node: ir.Node, names: FreshNames) -> bool:
    """Fold Add, Sub, Mul and Div of a constant into the Conv, ConvTranspose or Gemm before them.

    Requires: the constant has one number a channel, or one for all; the layer's weight and bias are
    constants, and nothing else reads the layer. Ensures: a bias that an exporter writes as an Add is the
    layer's own, as the integer kernels need it. onnxscript's rule takes a Conv that is followed by both, with
    one number each.
    """
    operand = _layer_and_constant(node)
    if operand is None:
        return False
    layer, numbers = operand
    if node.op_type in ("Add", "Sub"):
        layer.write(None, layer.bias + numbers if node.op_type == "Add" else layer.bias - numbers, names)
    else:
        factor = numbers if node.op_type == "Mul" else 1 / numbers
        layer.write(layer.scaled(factor), layer.bias * factor, names)
    take_place(layer.node.outputs[0], node.outputs[0], names)
    drop(node)
    return True


BIAS_ADD = RewritePass(
    "bias_add", "Add of a constant into the layer before it", each_node(_fold_affine_map, "Add", "Sub")
)
FACTOR = RewritePass(
    "factor", "Mul by a constant into the layer before it", each_node(_fold_affine_map, "Mul", "Div")
)
DEFAULT_EPSILON = 1e-5


def _fold_batch_norm(node: ir.Node, names: FreshNames) -> bool:
    """Fold a BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    Requires: all parameters are constants, statistics are fixed (``training_mode`` 0), and nothing else reads
    the layer. onnxscript's rule also folds one that computes the statistics of the batch, leaves one behind a
    shared weight, and breaks the graph where its bias's name is taken.
    """
    source = node.inputs[0]
    layer = affine_layer(source.producer()) if source is not None else None
    parameters = _parameters(node)
    if source is None or layer is None or parameters is None or sole_reader(source) is not node:
        return False
    if any(array.size != layer.channels for array in parameters):
        return False
    scale, shift, mean, variance = parameters
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    factor = (scale / np.sqrt(variance + np.float32(epsilon))).astype(layer.weight.dtype)
    layer.write(layer.scaled(factor), (layer.bias - mean) * factor + shift, names)
    take_place(source, node.outputs[0], names)
    drop(node)
    return True


BATCH_NORM = RewritePass(
    "batch_norm",
    "BatchNormalization into the layer before it",
    each_node(_fold_batch_norm, "BatchNormalization"),
)


def _parameters(node: ir.Node) -> list[Floats] | None:
    """Return scale, bias, mean and variance, or None where they are not fixed."""
    if node.attributes.get_int("training_mode", 0) or any(value.uses() for value in node.outputs[1:]):
        return None
    arrays = [floats_of(value) for value in node.inputs[1:5]]
    known = [array for array in arrays if array is not None]
    return known if len(known) == 4 else None


ALPHA, BETA = 0.2, 0.5  # HardSigmoid's defaults


def _fold_hard_sigmoid(node: ir.Node, names: FreshNames) -> bool:
    """Fold the slope and offset of a HardSigmoid into the layer before it; a Clip to [0, 1] remains.

    Requires: float32, and only the HardSigmoid reads the layer. The Clip disappears into a quantized range. A
    HardSigmoid has no integer kernel, and kept each gate of squeeze-and-excitation in a MobileNetV3 in float.
    """
    source = node.inputs[0]
    if source is None or sole_reader(source) is not node or not is_float32(source):
        return False
    layer = affine_layer(source.producer())
    if layer is None:
        return False
    alpha = np.float32(node.attributes.get_float("alpha", ALPHA))
    beta = np.float32(node.attributes.get_float("beta", BETA))
    layer.write(layer.scaled(np.full(layer.channels, alpha)), layer.bias * alpha + beta, names)
    bounds = [
        add_constant(node.graph, np.asarray(bound, np.float32), f"{node.name}_{bound}", names)
        for bound in (0, 1)
    ]
    put_instead(ir.Node("", "Clip", [source, *bounds]), node, names)
    return True


HARD_SIGMOID = RewritePass(
    "hard_sigmoid",
    "HardSigmoid into the layer before it and a Clip",
    each_node(_fold_hard_sigmoid, "HardSigmoid"),
)


def _fold_gemm(node: ir.Node, names: FreshNames) -> bool:
    """Fold Gemm's ``alpha`` into its weight and ``beta`` into its bias, which must be constants.

    Ensures: both factors are 1, as the integer kernels need them. onnxscript has no such rule.
    """
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    third = input_at(node, 2)
    weight, bias = floats_of(input_at(node, 1)), floats_of(third)
    if (alpha == 1.0 and beta == 1.0) or weight is None or (third is not None and bias is None):
        return False
    dtype = weight.dtype
    name = f"{node.name or 'Gemm'}"
    if alpha != 1.0:
        set_constant(node, 1, (weight * np.float32(alpha)).astype(dtype), f"{name}.weight", names)
    if beta != 1.0 and bias is not None:
        set_constant(node, 2, (bias * np.float32(beta)).astype(dtype), f"{name}.bias", names)
    for attribute in ("alpha", "beta"):
        node.attributes.pop(attribute, None)
    return True


GEMM_FACTORS = RewritePass(
    "gemm_factors", "alpha and beta of Gemm into its weight and bias", each_node(_fold_gemm, "Gemm")
)

"""Forms in which ONNX Runtime multiplies activations by int8 weights in integers, and the exact results.

Scales are 1, so that sums are compared in full. The result of a Conv has 8 bits: its bias makes each sum 100,
which any other sum would miss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ptq_cli.core.pair_sums import Order, conv_orders

Arrays = dict[str, np.ndarray]
WANTED = 100
HIDDEN = 6


@dataclass(frozen=True)
class Made:
    """A model, its inputs, the exact result, and how far a right one may be from it."""

    model: onnx.ModelProto
    feeds: Arrays
    exact: np.ndarray
    tolerance: float = 0.0


@dataclass(frozen=True)
class Form:
    """A form: the shapes of its weight and activations, and the orders in which kernels read the weight."""

    name: str
    weight: tuple[int, ...]
    activations: tuple[int, ...]
    orders: tuple[Order, ...]
    make: Callable[[np.ndarray, np.ndarray], Made]


def model_of(nodes: Sequence[onnx.NodeProto], feeds: Arrays, constants: Arrays) -> onnx.ModelProto:
    """Return a model whose last node gives the result."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    for index, node in enumerate(nodes):
        node.name = node.name or f"{node.op_type.lower()}_{index}"
    result = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    used = {name for node in nodes for name in node.input}
    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in used
    ]
    graph = helper.make_graph(nodes, "form", given, [result], initializers)
    graph.output[0].type.tensor_type.elem_type = (
        TensorProto.INT32 if nodes[-1].op_type == "MatMulInteger" else TensorProto.FLOAT
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def pair(name: str, zero: str = "zero") -> list[onnx.NodeProto]:
    """Return the QuantizeLinear and the DequantizeLinear of a tensor."""
    return [
        helper.make_node("QuantizeLinear", [name, "one", zero], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", "one", zero], [f"{name}_d"]),
    ]


def restored(name: str, zero: str = "signed_zero") -> onnx.NodeProto:
    """Return the DequantizeLinear of a constant: without a zero point, a Gemm has no integer kernel."""
    return helper.make_node("DequantizeLinear", [name, "one", zero], [f"{name}_d"])


ONE: Arrays = {"one": np.float32(1), "zero": np.uint8(0), "signed_zero": np.int8(0), "bias_zero": np.int32(0)}


def _sums(weight: np.ndarray, patch: np.ndarray, groups: int) -> np.ndarray:
    rows = weight.astype(np.int64).reshape(groups, len(weight) // groups, -1)
    return np.einsum("gk,gmk->gm", patch.astype(np.int64).reshape(groups, -1), rows).reshape(-1)


def conv(
    name: str, filters: int, channels: int, kernel: tuple[int, ...], groups: int = 1, *, signed: bool = False
) -> Form:
    """Return a Conv over copies of one patch, which do not overlap."""
    shape = (filters, channels // groups, *kernel)

    def make(weight: np.ndarray, patch: np.ndarray) -> Made:
        bias = (WANTED - _sums(weight, patch, groups)).astype(np.int32)
        image = np.tile(patch, (1, *[1] * len(kernel[1:]), 3))[np.newaxis].astype(np.float32)
        zero = np.int8(-128) if signed else np.uint8(0)
        attributes = {"kernel_shape": kernel, "strides": kernel, "group": groups}
        nodes = [
            *pair("x"),
            restored("weight"),
            restored("bias", "bias_zero"),
            helper.make_node("Conv", ["x_d", "weight_d", "bias_d"], ["y"], "layer", **attributes),
            *pair("y"),
        ]
        feeds, constants = {"x": image}, {**ONE, "zero": zero, "weight": weight, "bias": bias}
        return Made(model_of(nodes, feeds, constants), feeds, np.float32(WANTED))

    return Form(name, shape, (channels, *kernel), conv_orders(shape, groups), make)


def overlapping_conv() -> Form:
    """Return a Conv with strides, padding and dilation, whose sums are compared in steps of 8 bits."""
    shape = (8, 3, 3, 3)

    def make(weight: np.ndarray, image: np.ndarray) -> Made:
        attributes = {"pads": [1, 1, 1, 1], "strides": [2, 1], "dilations": [1, 2]}
        feeds = {"x": image[np.newaxis].astype(np.float32)}
        node = helper.make_node("Conv", ["x", "weight"], ["y"], **attributes)
        plain = model_of([node], feeds, {"weight": weight.astype(np.float32)})
        exact = computed(plain, feeds)  # Sums of so few products are exact in float32.
        step, zero = np.float32(2 * np.abs(exact).max() / 250), np.uint8(128)
        nodes = [
            *pair("x"),
            restored("weight"),
            helper.make_node("Conv", ["x_d", "weight_d"], ["y"], "layer", **attributes),
            helper.make_node("QuantizeLinear", ["y", "step", "middle"], ["y_q"]),
            helper.make_node("DequantizeLinear", ["y_q", "step", "middle"], ["y_d"]),
        ]
        constants = {**ONE, "weight": weight, "step": step, "middle": zero}
        return Made(model_of(nodes, feeds, constants), feeds, exact, 0.51 * float(step))

    return Form("Conv with strides, padding and dilation", shape, (3, 9, 9), conv_orders(shape, 1), make)


def matrix(name: str, nodes: list[onnx.NodeProto], rows: int, *, turned: bool = False) -> Form:
    """Return a product of rows with a matrix; ``turned`` if its weight is stored by output channels."""

    def make(weight: np.ndarray, activations: np.ndarray) -> Made:
        exact = activations.astype(np.int64) @ (weight.T if turned else weight).astype(np.int64)
        is_integer = nodes[0].op_type.startswith("MatMulInteger")
        feeds = {"x": activations.astype(np.uint8 if is_integer else np.float32)}
        constants = {**ONE, "weight": weight}
        return Made(model_of(nodes, feeds, constants), feeds, exact)

    inner = 13
    shape = (10, inner) if turned else (inner, 10)
    return Form(f"{name}, {rows} rows", shape, (rows, inner), (((1,) if turned else (0,)),), make)


def lstm() -> Form:
    """Return ONNX Runtime's LSTM on integers, one step from a state; both weights have the same integers."""
    inputs = HIDDEN
    scale = np.float32(1 / (127 * inputs))

    def make(weight: np.ndarray, activations: np.ndarray) -> Made:
        row = (activations[0] / 255).astype(np.float32)
        feeds = {"x": row.reshape(1, 1, -1), "h": row.reshape(1, 1, -1)}
        constants = {
            "w": weight,
            "r": weight.copy(),
            "c": np.zeros((1, 1, HIDDEN), np.float32),
            "scale": np.full(1, scale),
            "zeros": np.zeros(1, np.int8),
        }
        names = ["x", "w", "r", "", "", "h", "c", "", "scale", "zeros", "scale", "zeros"]
        node = helper.make_node(
            "DynamicQuantizeLSTM", names, ["y"], "layer", domain="com.microsoft", hidden_size=HIDDEN
        )
        gates = 2 * float(scale) * (row.astype(np.float64) @ weight[0].astype(np.float64))
        gate_in, gate_out, _, cell = (gates[HIDDEN * i : HIDDEN * (i + 1)] for i in range(4))
        exact = _sigmoid(gate_out) * np.tanh(_sigmoid(gate_in) * np.tanh(cell))
        return Made(model_of([node], feeds, constants), feeds, exact.reshape(1, 1, 1, -1), 1e-5)

    return Form("DynamicQuantizeLSTM", (1, inputs, 4 * HIDDEN), (1, inputs), ((1,),), make)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def _matrices() -> list[Form]:
    node = helper.make_node
    microsoft = {"domain": "com.microsoft"}
    zeros = ["zero", "signed_zero"]
    forms = []
    for rows in (1, 5):
        read = [*pair("x"), restored("weight")]
        forms += [
            matrix("MatMul", [*read, node("MatMul", ["x_d", "weight_d"], ["y"], "layer")], rows),
            matrix("Gemm", [*read, node("Gemm", ["x_d", "weight_d"], ["y"], "layer")], rows),
            matrix(
                "Gemm with transB",
                [*read, node("Gemm", ["x_d", "weight_d"], ["y"], "layer", transB=1)],
                rows,
                turned=True,
            ),
            matrix("MatMulInteger", [node("MatMulInteger", ["x", "weight", *zeros], ["y"], "layer")], rows),
            matrix(
                "MatMulIntegerToFloat",
                [
                    node(
                        "MatMulIntegerToFloat",
                        ["x", "weight", "one", "one", *zeros],
                        ["y"],
                        "layer",
                        **microsoft,
                    )
                ],
                rows,
            ),
            matrix(
                "DynamicQuantizeMatMul",
                [node("DynamicQuantizeMatMul", ["x", "weight", "one"], ["y"], "layer", **microsoft)],
                rows,
            ),
        ]
    return forms


SATURATING = [
    conv("Conv in 1 dimension", 8, 4, (5,)),
    conv("Conv in 2 dimensions", 8, 4, (3, 3)),
    conv("Conv in 3 dimensions", 8, 4, (2, 3, 2)),
    conv("Conv of 1 position", 8, 9, (1, 1)),
    conv("Conv of odd channels", 8, 3, (3, 3)),
    conv("Conv of one channel", 8, 1, (3, 3)),
    conv("Conv in groups of odd channels", 8, 6, (3, 3), 2),
    conv("Conv in groups of even channels", 8, 8, (3,), 2),
    conv("Conv with a depth multiplier", 16, 8, (3, 3), 8),
    conv("Conv of int8 activations", 8, 4, (3, 3), signed=True),
    overlapping_conv(),
    *_matrices(),
    lstm(),
]
# Forms whose kernels are exact with any weights.
EXACT = [
    conv("depthwise Conv in 1 dimension", 8, 8, (3,), 8),
    conv("depthwise Conv", 8, 8, (3, 3), 8),
    conv("depthwise Conv in 3 dimensions", 8, 8, (3, 2, 3), 8),
    conv("Conv from one channel to one", 1, 1, (3, 3)),
]


def computed(model: onnx.ModelProto, feeds: Arrays) -> np.ndarray:
    """Return what ONNX Runtime computes, optimized."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, feeds)[0]
    return found


def is_exact(made: Made) -> bool:
    """Return whether what ONNX Runtime computes is the exact result."""
    return bool(np.abs(computed(made.model, made.feeds) - made.exact).max() <= made.tolerance)

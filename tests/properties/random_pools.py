"""Random poolings and chains of activation functions between convolutions, as ONNX text."""

import numpy as np

SIZES = (7, 8, 9)
ACTIVATIONS = (
    "Relu", "HardSwish", "LeakyRelu<alpha=0.1>", "Sigmoid", "HardSigmoid", "HardSigmoid<alpha=0.16666667>",
    "Tanh", "Elu", "Gelu", "Clip", "PRelu", "Swish", "Softplus", "Abs", "Neg", "Identity", "Celu", "Selu",
    "Mish", "ThresholdedRelu<alpha=0.5>",
)  # fmt: skip
CLIPS = ("zero, six", "minus, one", "zero", "minus", "tenth, six", ", six", "zero, one")
CONSTANTS = "float zero = {0}, float six = {6}, float minus = {-1}, float one = {1}, float tenth = {0.1}"
WEIGHTS = "float[4,4,3,3] w, float[4] b, float[4,4,1,1] u, float[4,1,1] k"


def random_graph(seed: int) -> str:
    """Conv, up to four activation functions with at most one pooling, and a Conv that reads the last."""
    random = np.random.default_rng(seed)
    height, width = (int(item) for item in random.choice(SIZES, 2))
    steps = ["v0 = Conv<pads=[1,1,1,1]>(x, w, b)"]
    count = int(random.integers(1, 5))
    pooled = int(random.integers(0, count)) if random.random() < 0.6 else -1
    for index in range(count):
        value, made = f"v{index}", f"v{index + 1}"
        steps.append(_pool(random, value, made) if index == pooled else _activation(random, value, made))
    last = f"v{count}"
    ends = (
        f"y = Conv({last}, u)",
        f"p = Conv({last}, u) y = Add(p, {last})",
        f"p = Conv({last}, u) y = Relu(p)",
    )
    steps.append(str(random.choice(ends)))
    return f"(float[1,4,{height},{width}] x) => (float[] y) <{WEIGHTS}, {CONSTANTS}> {{ {' '.join(steps)} }}"


def _activation(random: np.random.Generator, x: str, made: str) -> str:
    op = str(random.choice(ACTIVATIONS))
    if op == "Swish":
        return f"{made}s = Sigmoid({x}) {made} = Mul({x}, {made}s)"
    more = {"Clip": f", {random.choice(CLIPS)}", "PRelu": ", k"}.get(op, "")
    return f"{made} = {op}({x}{more})"


def _pool(random: np.random.Generator, x: str, made: str) -> str:
    op = str(random.choice(["AveragePool"] * 3 + ["MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]))
    if op.startswith("Global"):
        return f"{made} = {op}({x})"
    kernel = [int(item) for item in random.integers(2, 4, 2)]
    said = [f"kernel_shape={kernel}"]
    if random.random() < 0.2:
        # ONNX Runtime 1.31 fails with strides above the kernel's size, and knows no dilations, with auto_pad.
        said.append(f"strides={[int(random.integers(1, size + 1)) for size in kernel]}")
        said.append(f'auto_pad="{random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])}"')
    else:
        pads = [int(random.integers(0, size)) for size in (*kernel, *kernel)]
        ceil = (
            int(random.integers(0, 2)) if op != "LpPool" else 0
        )  # ONNX Runtime's LpPool is not ONNX's there.
        # Whether windows begin in the padding behind, ONNX's shape inference and runtimes do not agree on.
        most = [size - end if ceil else 3 for size, end in zip(kernel, pads[2:], strict=True)]
        said.append(f"strides={[int(random.integers(1, step + 1)) for step in most]}")
        said.append(f"pads={pads}, ceil_mode={ceil}")
        said += ["dilations=[2,1]"] * (random.random() < 0.2)
    said += [f"count_include_pad={random.integers(0, 2)}"] * (op == "AveragePool")
    return f"{made} = {op}<{', '.join(said)}>({x})"

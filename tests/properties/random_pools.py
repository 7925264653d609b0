"""Random poolings and chains of activation functions between convolutions, as ONNX text."""

import numpy as np

SIZES = (7, 8, 9)
ACTIVATIONS = (
    "Relu", "HardSwish", "LeakyRelu<alpha=0.1>", "Sigmoid", "HardSigmoid", "HardSigmoid<alpha=0.16666667>", "Tanh",
    "Elu", "Gelu", "Clip", "PRelu", "Swish", "Softplus", "Abs", "Neg", "Identity", "Celu", "Selu", "Mish",
    "ThresholdedRelu<alpha=0.5>",
)  # fmt: skip
CLIPS = ("zero, six", "minus, one", "zero", "minus", "tenth, six", ", six", "zero, one")
CONSTANTS = "float zero = {0}, float six = {6}, float minus = {-1}, float one = {1}, float tenth = {0.1}"
WEIGHTS = "float[4,4,3,3] w, float[4] b, float[4,4,1,1] u, float[4,1,1] k"


def random_graph(seed: int, opset: int = 20) -> str:
    """Conv, up to three activation functions and poolings, and a Conv that reads the last; some are read twice."""
    random = np.random.default_rng(seed)
    height, width = (int(item) for item in random.choice(SIZES, 2))
    steps, value = ["c = Conv<pads=[1,1,1,1]>(x, w, b)"], "c"
    for index in range(int(random.integers(1, 4))):
        made = f"v{index}"
        step = _pool(random, value, (height, width)) if random.random() < 0.4 else _activation(random, value)
        if step.startswith(("Average", "Max", "Lp", "Global")):
            steps.append(f"{made} = {step}")
            value = made
            break
        steps.append(step.format(made=made) if "{made}" in step else f"{made} = {step}")
        value = made
    for index in range(int(random.integers(0, 2))):
        step = _activation(random, value)
        steps.append(step.format(made=f"t{index}") if "{made}" in step else f"t{index} = {step}")
        value = f"t{index}"
    end = random.choice(
        ["y = Conv({v}, u)", "p = Conv({v}, u) y = Add(p, {v})", "p = Conv({v}, u) y = Relu(p)"]
    )
    steps.append(str(end).format(v=value))
    return f"(float[1,4,{height},{width}] x) => (float[] y) <{WEIGHTS}, {CONSTANTS}> {{ {' '.join(steps)} }}"


def _activation(random: np.random.Generator, x: str) -> str:
    op = str(random.choice(ACTIVATIONS))
    if op == "Clip":
        return f"Clip({x}, {random.choice(CLIPS)})"
    if op == "PRelu":
        return f"PRelu({x}, k)"
    if op == "Swish":
        return f"{{made}}s = Sigmoid({x}) {{made}} = Mul({x}, {{made}}s)"
    return f"{op}({x})"


def _pool(random: np.random.Generator, x: str, sizes: tuple[int, int]) -> str:
    op = str(random.choice(["AveragePool"] * 3 + ["MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]))
    if op.startswith("Global"):
        return f"{op}({x})"
    kernel = [int(item) for item in random.integers(2, 4, 2)]
    said = [f"kernel_shape={kernel}", f"strides={[int(item) for item in random.integers(1, 4, 2)]}"]
    if random.random() < 0.2:
        said.append(f'auto_pad="{random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])}"')
    else:
        # ONNX has padding below the kernel's size, and defines ceil_mode without auto_pad alone.
        said.append(f"pads={[int(random.integers(0, size)) for size in (*kernel, *kernel)]}")
        said.append(f"ceil_mode={random.integers(0, 2)}")
    if random.random() < 0.2 and min(sizes) > 2 * max(kernel) and "auto_pad" not in said[-1]:
        said.append("dilations=[2,1]")
    if op == "AveragePool":
        said.append(f"count_include_pad={random.integers(0, 2)}")
    return f"{op}<{', '.join(said)}>({x})"

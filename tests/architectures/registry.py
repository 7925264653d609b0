"""The architectures: how each is built, and Gaussian inputs for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptq_cli.core.tensors import Array
from tests.architectures import conformer, dlrm, llama, recurrent, transformers

FOLDER = Path(__file__).parent
Draw = Callable[[np.random.Generator, int], dict[str, Array]]


@dataclass(frozen=True)
class Architecture:
    """An architecture.

    Attributes:
        arch: ``file.py:callable``, in this folder.
        draw: inputs of so many samples.
        floats: types of the operators that stay float.
        least_share: of the multiply-accumulates, what is computed in integers at least.
    """

    arch: str
    draw: Draw
    floats: str = ""
    least_share: float = 1.0


def gaussian(name: str, *shape: int) -> Draw:
    """Return what draws noise of a shape."""
    return lambda random, count: {name: random.standard_normal((count, *shape)).astype(np.float32)}


def words(random: np.random.Generator, count: int) -> dict[str, Array]:
    """Return sentences of BERT with a mask: each ends at a length of its own."""
    lengths = random.integers(3, transformers.LENGTH + 1, (count, 1))
    return {
        "ids": random.integers(0, transformers.WORDS, (count, transformers.LENGTH)),
        "mask": (np.arange(transformers.LENGTH) < lengths).astype(np.int64),
    }


def ids(count_of_words: int, length: int) -> Draw:
    """Return what draws sentences of one length."""
    return lambda random, count: {"ids": random.integers(0, count_of_words, (count, length))}


def passages(random: np.random.Generator, count: int) -> dict[str, Array]:
    """Return sentences of Llama, each somewhere in a long text."""
    starts = random.integers(0, llama.POSITIONS - llama.LENGTH, (count, 1))
    return {
        "ids": random.integers(0, llama.WORDS, (count, llama.LENGTH)),
        "positions": starts + np.arange(llama.LENGTH),
    }


def clicks(random: np.random.Generator, count: int) -> dict[str, Array]:
    """Return dense features, and an index into each table."""
    return {
        "dense": random.standard_normal((count, dlrm.DENSE)).astype(np.float32),
        "sparse": random.integers(0, dlrm.ROWS, (count, dlrm.TABLES)),
    }


IMAGE = gaussian("input", 3, 16, 16)
SHAPES = "Shape Concat Expand Slice Transpose"  # Of the first state of a recurrent layer, and of its result
ARCHITECTURES: Mapping[str, Architecture] = {
    "ResNet, basic": Architecture("resnet.py:basic", IMAGE),
    "ResNet, bottleneck": Architecture("resnet.py:bottleneck", IMAGE),
    "MobileNetV2": Architecture("mobilenet.py:v2", IMAGE),
    "MobileNetV3": Architecture("mobilenet.py:v3", IMAGE),
    "EfficientNet": Architecture("mobilenet.py:efficientnet", IMAGE),
    "ConvNeXt": Architecture(
        "convnext.py:build", IMAGE, "Add Gelu GlobalAveragePool LayerNormalization Reshape Transpose"
    ),
    "U-Net": Architecture("unet.py:build", gaussian("x", 3, 16, 16), "ConvTranspose", 0.95),
    "BERT": Architecture(
        "transformers.py:bert",
        words,
        "Add Cast Div Gather Gelu LayerNormalization Mul Softmax Sub Tanh Unsqueeze",
    ),
    "GPT": Architecture(
        "transformers.py:gpt",
        ids(transformers.WORDS, transformers.LENGTH),
        "Add Div Gather Gelu LayerNormalization Softmax",
    ),
    "Llama": Architecture(
        "llama.py:build",
        passages,
        "Add Cast Concat Cos Div Expand Gather MatMul Mul Neg Pow ReduceMean Shape Sin Softmax Sqrt "
        "Transpose Unsqueeze",
        0.999,
    ),
    "ViT": Architecture(
        "transformers.py:vit",
        gaussian("image", 3, 16, 16),
        "Add Concat Div Expand Gather Gelu LayerNormalization Reshape Shape Softmax Transpose",
    ),
    "Conformer": Architecture(
        "conformer.py:build",
        gaussian("features", 24, conformer.BANDS),
        "Add Concat Gather LayerNormalization Mul Reshape Shape Slice Softmax Transpose",
    ),
    "LSTM tagger": Architecture(
        "recurrent.py:tagger", ids(recurrent.WORDS, 10), f"Add Gather LSTM Relu {SHAPES}", 0.1
    ),
    "GRU keyword spotter": Architecture(
        "recurrent.py:spotter", gaussian("features", recurrent.FRAMES, recurrent.BANDS), f"GRU {SHAPES}", 0.3
    ),
    "DLRM": Architecture("dlrm.py:build", clicks, "Gather GatherND Reshape Transpose"),
}

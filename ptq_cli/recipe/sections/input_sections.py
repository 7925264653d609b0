"""``[model]``, ``[data]``, ``[image]`` and ``[text]``: which model, and how files become its inputs."""

from dataclasses import dataclass, field
from typing import Any

from ptq_cli.recipe.sections.field_kinds import LOCATION, Location


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """``[model]``: which model, and how to build it.

    Attributes:
        path: the model file; the argument on the command line overrides it.
        arch: ``file.py:callable`` that builds the module for a state dict.
        trust_pickle: whether to allow unpickling a whole module, which can run any code in the file.
        inputs: values of inputs that are fixed before the model is prepared, by name: a number, true or
            false, or nested lists. The model then no longer has these inputs, and data for them is not read.
        input_shape: shape of each input by its name, with the batch first, for inputs whose shape no data
            tells.
    """

    path: Location | None = field(default=None, metadata=LOCATION)
    arch: Location | None = field(default=None, metadata=LOCATION)
    trust_pickle: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)
    input_shape: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSettings:
    """``[data]``: how the arrays of calibration and evaluation data become the model's inputs.

    Attributes:
        rename: the model's input by the name of an array in the data; ``label`` names the labels. An array
            needs no entry if it has the input's name, or if it is the only one and the model has one input.
            An entry may be for one of the two data sets alone; what ``--rename`` names must be in the data
            that the command reads.
        batch_axis: axis of the samples of inputs and outputs that do not have it first, by name: a number
            from 0, or ``"none"`` for an input that has no axis for samples: each batch gets the whole array.
            ``"*"`` stands for all other inputs; with ``"none"``, each item of the data is one step, which is
            run as it is. The arrays of the data have their samples on the same axis. What is not named here
            is taken from the names of an ONNX file's sizes where they leave no doubt, with a note.
    """

    rename: dict[str, str] = field(default_factory=dict)
    batch_axis: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """``[image]``: how an image file becomes an array; the steps run in the order of the fields.

    Attributes:
        mode: ``"RGB"``, ``"BGR"`` or ``"L"`` (gray, one channel).
        resize: [height, width], or [n] for the shorter side; bilinear. If empty, the size stays.
        crop: [height, width] of the part to cut from the center. If empty, nothing is cut.
        scale: factor for the pixel values 0 to 255, applied before mean and std.
        mean: value to subtract: one per channel, or one for all channels.
        std: value to divide by: one per channel, or one for all channels.
        layout: order of the axes: ``"NCHW"`` or ``"NHWC"``.
    """

    mode: str = "RGB"
    resize: list[int] = field(default_factory=list)
    crop: list[int] = field(default_factory=list)
    scale: float = 1 / 255
    mean: list[float] = field(default_factory=lambda: [0.0])
    std: list[float] = field(default_factory=lambda: [1.0])
    layout: str = "NCHW"


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """``[text]``: how texts become the tokens that a model reads; see ``docs/text.md``.

    Attributes:
        tokenizer: the model's ``tokenizer.json``, or a folder that holds it.
        columns: columns of the texts in JSON lines or Parquet, one, or two for pairs; ``text`` if empty.
        label_column: column of the labels; ``label`` or ``labels``, if there is one, if not set.
        window: tokens per sample; if not set, what the model's shapes say, or 128.
        stride: tokens from the start of one window to that of the next; the window if not set.
        tail: ``"drop"`` leaves out the rest of the text that is shorter than a window, ``"pad"`` fills it up.
        pack: whether the texts are joined and cut into windows; otherwise each text is a sample, cut or
            filled up to the window. If not set, they are joined unless there are labels or pairs, tokens are
            masked, or the tokenizer puts tokens around each text, as those of encoders do.
        pairs: ``"joined"`` reads both texts of a pair as one sample, ``"apart"`` as two, one after the other.
        mask_share: share of the tokens, 0 to 0.9, that are hidden behind the mask token, for ``masked_top1``.
    """

    tokenizer: Location | None = field(default=None, metadata=LOCATION)
    columns: list[str] = field(default_factory=list)
    label_column: str | None = None
    window: int | None = None
    stride: int | None = None
    tail: str = "drop"
    pack: bool | None = None
    pairs: str = "joined"
    mask_share: float = 0.0

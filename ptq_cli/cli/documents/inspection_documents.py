"""What ``inspect``, ``verify`` and ``quantizers`` print with ``--json``."""

from typing import Any, Literal, TypedDict

from ptq_cli.qdq.proof.operators import OperatorProof
from ptq_cli.qdq.proof.target_faults import Fault
from ptq_cli.report.document.report_document import Saturation


class InputDocument(TypedDict):
    """An input or output of a model.

    Attributes:
        name: its name.
        dtype: its type, as numpy calls it.
        shape: one entry per axis; null where any size is allowed.
    """

    name: str
    dtype: str
    shape: list[int | None]


class InspectedLayerDocument(TypedDict):
    """A layer that could be quantized.

    Attributes:
        name: name of the node.
        op: its operator.
        output: shape of what it computes; null where a size is not known, and null if nothing is known.
        parameters: how many numbers its weight and bias have.
        multiply_accumulates: how much it computes for a sample; null if that is not known.
        integer: whether it would compute in integers.
        activations: the format of its inputs; null if they stay in float.
        weight_format: the format of its weight; null if it stays in float, or if there is none.
        weight: name of its weight; null if it has none.
        reason: why it stays in float; empty if it does not.
    """

    name: str
    op: str
    output: list[int | None] | None
    parameters: int
    multiply_accumulates: int | None
    integer: bool
    activations: str | None
    weight_format: str | None
    weight: str | None
    reason: str


class InspectDocument(TypedDict):
    """What ``ptq inspect`` prints.

    Attributes:
        model: the file.
        kind: its format, in words.
        sha256: SHA-256 of the file.
        parameters: how many numbers the model's constants have.
        inputs, outputs: of the model.
        target: the target whose rules were applied.
        quantized: whether the model is quantized already.
        notes: what a user should know of the inputs.
        parity: largest difference between the ONNX model and its source, as a share of the largest output;
            null if they were not compared.
        multiply_accumulates: how much the model computes for a sample, as far as it is known.
        assumed_sizes: sizes that this counts with because they are not fixed, by ``input[axis]``.
        counted_for_one_step: operators inside loops, with the loop that they were counted for one step of.
        layers: each layer that could be quantized.
    """

    model: str
    kind: str
    sha256: str
    parameters: int
    inputs: list[InputDocument]
    outputs: list[InputDocument]
    target: str
    quantized: bool
    notes: list[str]
    parity: float | None
    multiply_accumulates: int
    assumed_sizes: dict[str, int]
    counted_for_one_step: dict[str, str]
    layers: list[InspectedLayerDocument]


class WorkDocument(TypedDict):
    """Multiply-accumulates of a sample.

    Attributes:
        integer: those that are computed in integers.
        total: all that are known.
    """

    integer: int
    total: int


class OutputDifferenceDocument(TypedDict):
    """The difference between an output of the optimized graph and of the graph as written.

    Attributes:
        output: its name.
        absolute: the largest difference; null if it is not finite.
        step: the size of a quantization step of the output.
        on_grid: whether the step is that of the output's own grid; otherwise of 8 bits over its range.
        sqnr_db: SQNR in dB; null if both are equal.
        steps: the largest difference in steps.
    """

    output: str
    absolute: float | None
    step: float | None
    on_grid: bool
    sqnr_db: float | None
    steps: float | None


class ComparedOutputsDocument(TypedDict):
    """The outputs of the optimized graph compared with those of the graph as written.

    Attributes:
        data: where the samples are from, or that they were generated.
        samples: how many there are.
        differences: one for each output of numbers.
    """

    data: str
    samples: int
    differences: list[OutputDifferenceDocument]


class KernelDifferenceDocument(TypedDict):
    """The largest difference between a kernel and its operators as written, on the same integers.

    Attributes:
        node: name of the operator.
        op: its type.
        tensor: what it computes.
        steps: the largest difference, in steps of 8 bits over its range; null if it is not finite.
        share: share of the values that differ; null for floats.
    """

    node: str
    op: str
    tensor: str
    steps: float | None
    share: float | None


class ComparedKernelsDocument(TypedDict):
    """Each kernel compared with its operators as written.

    Attributes:
        samples: on how many samples.
        compared: how many kernels were compared.
        max_steps: the largest difference that passes, in steps.
        differences: the kernels that differ at all.
        fault: why kernels could not be compared; null if they were.
    """

    samples: int
    compared: int
    max_steps: float
    differences: list[KernelDifferenceDocument]
    fault: str | None


class VerifyDocument(TypedDict):
    """What ``ptq verify`` prints.

    Attributes:
        model: the file.
        made_by: the tool that wrote it, as the file says.
        opset: version of the operators.
        target: the target whose rules were checked.
        runtime: the runtime whose kernels are shown, with its version; null if only rules were checked.
        integer_share: share of the multiply-accumulates that is computed in integers; null if none are known.
        multiply_accumulates: of a sample.
        min_integer_share: the share that was required; null if none was.
        assumed_sizes: sizes that this counts with because they are not fixed, by ``input[axis]``.
        counted_for_one_step: operators inside loops, with the loop that they were counted for one step of.
        unknown: operators whose work is not known, with the reason.
        operators: every operator, in the order of the graph.
        faults: rules of the target that the graph breaks.
        outputs: comparison of the outputs; null without data.
        kernels: comparison of each kernel; null if there was none.
        data_faults: why data of the recipe could not be used.
        saturation: which layers can saturate on x86 processors without VNNI.
        saturates_here: whether this processor is such a one, and there are such layers.
        require_portable: whether there may be no such layers.
        verdict: whether everything holds.
    """

    model: str
    made_by: str
    opset: int
    target: str
    runtime: str | None
    integer_share: float | None
    multiply_accumulates: WorkDocument
    min_integer_share: float | None
    assumed_sizes: dict[str, int]
    counted_for_one_step: dict[str, str]
    unknown: dict[str, str]
    operators: list[OperatorProof]
    faults: list[Fault]
    outputs: ComparedOutputsDocument | None
    kernels: ComparedKernelsDocument | None
    data_faults: list[str]
    saturation: Saturation
    saturates_here: bool
    require_portable: bool
    verdict: Literal["pass", "fail"]


class ParameterDocument(TypedDict):
    """A parameter of a quantizer.

    Attributes:
        name: its name.
        default: its default.
        wanted: which values are valid, in words.
    """

    name: str
    default: Any
    wanted: str


class QuantizerDocument(TypedDict):
    """A quantizer.

    Attributes:
        name: its name.
        meaning: what it is, in words.
        formula: what it computes.
        gradient: its gradient.
        source: the paper or specification.
        weights: its parameters for weights.
        activations: its parameters for activations; null if it is only for weights.
        drawn: its parameters for ``ptq quantizers show``.
    """

    name: str
    meaning: str
    formula: str
    gradient: str
    source: str
    weights: list[ParameterDocument]
    activations: list[ParameterDocument] | None
    drawn: list[ParameterDocument]


class QuantizersDocument(TypedDict):
    """What ``ptq quantizers`` prints.

    Attributes:
        quantizers: every quantizer.
    """

    quantizers: list[QuantizerDocument]


class StaircaseDocument(TypedDict):
    """What ``ptq quantizers show`` prints.

    Attributes:
        name: name of the quantizer.
        settings: its parameters.
        formula: what it computes.
        levels: the values that its output can have.
        x: inputs.
        y: the output for each input.
        gradient: the gradient for each input.
        plot: the file of the picture; null if none was asked for.
    """

    name: str
    settings: dict[str, Any]
    formula: str
    levels: list[float]
    x: list[float]
    y: list[float]
    gradient: list[float]
    plot: str | None

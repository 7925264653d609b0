"""Rules of a target, one frozen dataclass for each table of its file, checked against ONNX's operators."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import onnx

from ptq_cli.core.formats import INTEGERS, IntegerFormat
from ptq_cli.core.pair_sums import ACROSS, RESTARTED
from ptq_cli.core.words import did_you_mean
from ptq_cli.models.pair_operators import DYNAMIC_LSTM
from ptq_cli.recipe.sections import FLOAT32

KINDS = ("compute", "join", "same", "clamp", "stored", "apart")
OUTPUTS = ("always", "asked")
STORED = ("integers", "pairs", "products")
BIASES = ("int32", "float")
CLAMPED_SUM = "clamped_sum"
INTEGER_FORMS = {CLAMPED_SUM: "HardSwish"}  # by form, the operator that is written so
QUICK_GELU = "QuickGelu"  # ONNX Runtime's own operator for ``x * sigmoid(alpha * x)``
JOINED_AXES = "joined axes"  # form of an operator with ``join_axes``
IMAGE_AXIS = "image axis"  # form of an operator with ``image_axis``
ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"
QNN = "qnn"
# Titles of the runtimes, by the name that a table has; ``runtime.engine_registry`` runs them.
RUNTIME_TITLES = {ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO", QNN: "HTP simulator"}
RUNTIMES = ("", *RUNTIME_TITLES)
KERNELS = ("", DYNAMIC_LSTM)
PAIR_ORDERS = (ACROSS, RESTARTED)


@dataclass(frozen=True, kw_only=True)
class ActivationRule:
    """``[activation]``: the integer format of activations.

    Attributes:
        format: ``"uint8"``, ``"int8"``, ``"uint16"`` or ``"int16"``.
        symmetric: the zero point is 0, or the middle of an unsigned format; no override may change it.
        simulated: formats that an override may ask for, and that are computed in float between a pair.
        formats: further formats that a recipe may ask for and the target computes in, such as
            ``"float8e4m3fn"``.
        mixed: an operator may read one of these formats and make another; otherwise it is float then.
        converted: an operator reads and makes one of these formats: a pair converts what it reads in another.
        dequantized_bytes: a Cast of bytes to floats is written as a DequantizeLinear with the scale 1, for a
            runtime without that Cast.
        clipped: a recipe may ask for 2 to 7 bits: a Clip of the integers within a pair costs no
            integer kernel.
        channel_multiple: channels that a QuantizeLinear brings to a Conv are padded to a multiple of this
            number; 1 leaves them.
    """

    format: str = "uint8"
    symmetric: bool = False
    simulated: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    mixed: bool = False
    converted: bool = False
    dequantized_bytes: bool = False
    clipped: bool = False
    channel_multiple: int = 1

    @property
    def integers(self) -> IntegerFormat:
        """The format as a value."""
        return INTEGERS[self.format]


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """``[weight]``: the integer format of weights, always symmetric.

    Attributes:
        format: always ``"int8"``.
        bits: bits of the format that are used; fewer than 8 keep the sums of a kernel from saturating.
        narrow_range: the most negative integer is not used.
        per_axis: one scale per output channel; otherwise one scale for the whole weight.
        packed: the runtime unpacks INT4 and UINT4 (opset 21) at loading, so weights of 4 bits or fewer are
            stored two per byte.
        stored: ``"integers"``, behind a DequantizeLinear; ``"pairs"``: floats on the grid, behind a pair; or
            ``"products"``: integers behind a Cast and a Mul by the scale, with kind ``"stored"`` only.
        blocks: weights of 4 bits or fewer may have one scale per block of an axis (opset 21), and are
            computed in float.
        formats: float types that a recipe may ask for instead of integers: ``"float8e4m3fn"``, stored behind
            a DequantizeLinear.
        quantizes_floats: the runtime quantizes a float operator between quantized tensors itself, so ptq
            leaves its result in float.
        channel_multiple: channels between Convs are padded with zero weights to a multiple of this number; 1
            leaves them.
        pair_sum: the largest sum of the magnitudes of two weights whose products a kernel adds in 16 bits:
            128 cannot saturate, 0 is no limit.
        pair_orders: which weights are a pair: ``"across"``, if pairs of channels run on from one position of
            a filter to the next; ``"restart"``, if they start again at each.
        preserve_sums: a Conv's weights are rounded so that their errors add up to 0; otherwise to nearest.
    """

    format: str = "int8"
    bits: int = 8
    narrow_range: bool = True
    per_axis: bool = True
    packed: bool = False
    stored: str = "integers"
    blocks: bool = False
    formats: list[str] = field(default_factory=list)
    quantizes_floats: bool = False
    channel_multiple: int = 1
    pair_sum: int = 0
    pair_orders: list[str] = field(default_factory=lambda: list(PAIR_ORDERS))
    preserve_sums: bool = True

    @property
    def integers(self) -> IntegerFormat:
        """The format as a value."""
        base = INTEGERS[self.format]
        narrow = self.narrow_range and base.signed
        return IntegerFormat(min(base.bits, self.bits), signed=base.signed, narrow_range=narrow)


@dataclass(frozen=True)
class BiasRule:
    """``[bias]``: how a bias is stored.

    Attributes:
        format: ``"int32"`` with the scale ``s_input * s_weight``, or ``"float"`` to leave it as it is.
    """

    format: str = "int32"


@dataclass(frozen=True, kw_only=True)
class BlockRule:
    """``blocks`` of an operator: the kernel that computes its weight in blocks if it reads floats.

    Attributes:
        kernel: what the runtime calls it.
        sizes: how many values of the weight may share a scale.
        bits: bits that a weight may have; fewer are stored with the next larger number.
    """

    kernel: str
    sizes: list[int]
    bits: list[int]


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """``[op.NAME]``: how a target treats one operator type.

    Attributes:
        kind: ``"compute"`` requests quantized inputs; ``"join"`` is integer if all its inputs and its output
            are; ``"same"`` moves values, so input and output share parameters; ``"clamp"`` disappears into
            the operator before it; ``"stored"`` has integer weights alone; ``"apart"`` stays float, never
            between two quantized tensors.
        activations: which inputs are quantized. Default: all for a ``"join"``, the first for a ``"same"``.
        weight: index of the input that is the weight, if it is constant.
        constants: which inputs of a ``"stored"`` are weights: all are integers, or none.
        weight_axis: axis of the weight's output channels.
        transpose_attribute: an attribute that is 1 if the weight is stored transposed.
        bias: index of the input that is the bias.
        bias_add: a following Add of a constant vector counts as the bias.
        output: ``"always"`` quantizes the output, ``"asked"`` only if another operator asks for it.
        outputs: ``"first"``, or ``"all"`` if every output of a ``"same"``, such as Split, shares the
            parameters.
        fuses_wrongly: the runtime wrongly merges the operator, activation functions behind it and a
            quantization of their result, which stays in float.
        ties: inputs and output of a ``"join"`` share one scale and zero point.
        fused_behind: operators that a ``"join"`` is merged into as their only reader; that input stays float.
        unit_attributes: attributes that must be 1, in each entry, for an integer kernel.
        equal_attributes: attributes that must have this value for an integer kernel.
        not_together: attributes that the integer kernel computes wrongly if all of them are set.
        pads_apart: zeros that count in a mean come from a Pad before the operator where the runtime's own
            padding is wrong.
        bias_for_floats: a result that is read in float needs a bias that is not 0; a tiny one is written.
        volume_groups_unpadded: a convolution with three spatial axes, groups and padding has no right integer
            kernel, unless each channel has one filter.
        not_read_by: operators before which a ``"join"`` along another axis than the last, or a product with
            a batch of matrices, stays float.
        merged_by: operators that the runtime merges this one into, in float, as its only readers; a quantized
            output keeps them apart.
        clamp_asks: before a Relu or Clip there is an integer kernel only if the Clip's result is quantized.
        integer_kernel: false if the weight is stored as integers but computed in float.
        formats: the formats that there is a kernel for, if not all of the target's.
        fewest_channels: by format, input and output channels that a kernel needs at least.
        largest_filter: by format, values that a Conv's filter may have at most.
        zero_point_above: no zero point of the activations that a constant weight meets is the least integer.
        result: a format for the operator's result, in place of the target's.
        fixed: by format, the scale and zero point that a kernel's result has, whatever a calibration says.
        weights: a format for the operator's weight, in place of the target's.
        blocks: the kernel for a weight with a scale for each block of its inputs, if activations stay float.
        kernel: ``"DynamicQuantizeLSTM"``, if the runtime has it.
        kernel_from: weights in a direction from which ``kernel`` is used, because it is faster.
        dynamic: the ONNX operator for a ``"compute"`` whose ranges are found at each run: ``"MatMulInteger"``
            or ``"ConvInteger"``.
        dynamic_note: why an override has to ask for that; empty if it is always done.
        note: the reason to show if the operator or the weight is computed in float nevertheless.
        float_form: an equivalent operator to write in float before one of ``float_form_before``, which the
            runtime would merge into a slower kernel.
        float_form_before: those operators.
        join_axes: in float, the axes behind its own are joined by a Reshape.
        image_axis: over the last of three axes it computes in float, and is written for four, for a runtime
            that is wrong for three.
        integer_form: how a ``"join"`` without a kernel is written in operators that have one:
            ``"clamped_sum"`` for a HardSwish.
    """

    kind: str
    activations: list[int] = field(default_factory=list)
    weight: int | None = None
    constants: list[int] = field(default_factory=list)
    weight_axis: int = 0
    transpose_attribute: str = ""
    bias: int | None = None
    bias_add: bool = False
    output: str = "asked"
    outputs: str = "first"
    fuses_wrongly: bool = False
    ties: bool = False
    fused_behind: list[str] = field(default_factory=list)
    unit_attributes: list[str] = field(default_factory=list)
    equal_attributes: dict[str, str] = field(default_factory=dict)
    not_together: list[str] = field(default_factory=list)
    pads_apart: bool = False
    bias_for_floats: bool = False
    volume_groups_unpadded: bool = False
    not_read_by: list[str] = field(default_factory=list)
    merged_by: list[str] = field(default_factory=list)
    clamp_asks: bool = False
    integer_kernel: bool = True
    formats: list[str] = field(default_factory=list)
    fewest_channels: dict[str, int] = field(default_factory=dict)
    largest_filter: dict[str, int] = field(default_factory=dict)
    zero_point_above: bool = False
    result: ActivationRule | None = None
    fixed: dict[str, list[float]] = field(default_factory=dict)
    weights: WeightRule | None = None
    blocks: BlockRule | None = None
    kernel: str = ""
    kernel_from: int = 0
    dynamic: str = ""
    dynamic_note: str = ""
    note: str = ""
    float_form: str = ""
    float_form_before: list[str] = field(default_factory=list)
    join_axes: bool = False
    image_axis: bool = False
    integer_form: str = ""

    @property
    def factors(self) -> tuple[int, ...]:
        """The inputs that an integer kernel multiplies: activations, and the weight if there is one."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys((*self.activations, *weight)))


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target's rules: the keys of the file itself.

    Attributes:
        name: the target's name.
        description: one line about it.
        opset: oldest ONNX opset that its quantized models need.
        activation: the integer format of activations.
        weight: the integer format of weights.
        bias: how a bias is stored.
        op: a rule for each operator type that can be integer; all others stay float.
        floats: the reason to show for an operator type without a rule.
        runtime: what executes its models for ptq: ``"onnxruntime"``, ``"openvino"``, or ``"qnn"``, the
            simulator of HTP.
        pairs_as_written: ONNX Runtime in the place of ``runtime`` computes pairs in float, as they are
            written.
        float_types: types of what is not quantized: ``"float32"``, and ``"float16"`` if the runtime computes
            in the types of the file.
        runtime_operators: allow operators of ONNX Runtime's own where they are faster, such as QuickGelu; no
            other runtime reads the model then.
        shifts_wrongly: a result that the runtime wrongly merges with an Add or Mul of a constant vector in
            front of it stays in float.
        static_shapes: no dimension of an input may be open: ``model.input_shape.batch=1`` closes that of the
            samples.
        extends: the name of a target of ptq, whose table this one changes key by key; a list replaces the
            list there.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> target = load_target("ort-cpu")
        >>> target.op["Conv"].output, target.activation.integers.name
        ('always', 'uint8')
    """

    name: str
    description: str
    opset: int
    activation: ActivationRule
    weight: WeightRule
    op: dict[str, OpRule]
    bias: BiasRule = field(default_factory=BiasRule)
    floats: dict[str, str] = field(default_factory=dict)
    runtime: str = ""
    pairs_as_written: bool = False
    float_types: list[str] = field(default_factory=lambda: [FLOAT32])
    runtime_operators: bool = False
    shifts_wrongly: bool = False
    static_shapes: bool = False
    extends: str = ""

    def weight_rule(self, op_type: str) -> WeightRule:
        """Return the rule for the weight of an operator type."""
        rule = self.op.get(op_type)
        return rule.weights if rule is not None and rule.weights is not None else self.weight


# Axis of the output channels in each operator's weight; for Gemm without transposition.
OUTPUT_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


def operator_mistakes(target: Target) -> Iterator[tuple[str, str]]:
    """Yield each part of a table that fits no ONNX operator, with a hint."""
    newest = onnx.defs.onnx_opset_version()
    if target.opset > newest:
        mistake = f"'opset' is {target.opset}, but the newest opset of ONNX {onnx.__version__} is {newest}"
        yield mistake, f"write {newest} or less"
    inputs = _most_inputs()
    for key, names in (("op", target.op), ("floats", target.floats)):
        for name in names:
            if name not in inputs:
                mistake = f"'{key}.{name}' is not an ONNX operator{did_you_mean(name, list(inputs))}"
                yield mistake, "write the operator's type as it is in a model, such as Conv or MatMul"
    for name, rule in target.op.items():
        if name in inputs:
            yield from _rule_mistakes(name, rule, inputs[name])


def _rule_mistakes(name: str, rule: OpRule, inputs: int) -> Iterator[tuple[str, str]]:
    for key, numbers in (
        ("activations", rule.activations),
        ("constants", rule.constants),
        ("weight", [rule.weight]),
        ("bias", [rule.bias]),
    ):
        for number in numbers:
            if number is not None and number >= inputs:
                mistake = f"'op.{name}.{key}' names input {number}, but {name} has {inputs} inputs"
                yield mistake, "inputs are counted from 0"
    wanted = OUTPUT_CHANNELS.get(name)
    # Without the attribute, a table may mean only transposed weights.
    if name == "Gemm" and not rule.transpose_attribute:
        wanted = None
    if rule.weight is not None and wanted is not None and rule.weight_axis != wanted:
        mistake = f"'op.{name}.weight_axis' is {rule.weight_axis}, expected {wanted}: the output channels"
        yield mistake, f"write {wanted}, or set per_axis = false for one scale for the whole weight"


@cache
def _most_inputs() -> dict[str, int]:
    return {schema.name: schema.max_input for schema in onnx.defs.get_all_schemas() if schema.domain == ""}

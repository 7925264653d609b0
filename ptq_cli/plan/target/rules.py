"""What a target's table says: one frozen dataclass for each of its tables."""

from dataclasses import dataclass, field

from ptq_cli.core.formats import BY_NAME, IntegerFormat

KINDS = ("compute", "join", "same", "clamp", "apart")
OUTPUTS = ("always", "asked")
STORED = ("integers", "pairs")
BIASES = ("int32", "float")
ONNXRUNTIME = "onnxruntime"
RUNTIMES = ("", ONNXRUNTIME)


@dataclass(frozen=True)
class ActivationRule:
    """``[activation]``: the integers of activations.

    Attributes:
        format: ``"uint8"``, ``"int8"``, ``"uint16"`` or ``"int16"``.
        symmetric: the zero point is 0, or the middle of an unsigned format. It is a promise: an override that
            asks for another zero point is refused.
        simulated: further formats that an override may ask for. The target computes them in float, between
            a QuantizeLinear and a DequantizeLinear.
        formats: further formats that an override may ask for, which the target computes in integers.
    """

    format: str = "uint8"
    symmetric: bool = False
    simulated: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)

    @property
    def integers(self) -> IntegerFormat:
        """The format itself."""
        return BY_NAME[self.format]


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """``[weight]``: the integers of weights, always symmetric.

    Attributes:
        format: ``"int8"``.
        bits: how many of a format's bits are used; fewer than 8 leave room in the sums of a kernel that
            would saturate.
        narrow_range: the most negative integer is left out.
        per_axis: a scale for each output channel; otherwise one for the whole weight.
        packed: the runtime unpacks constants of INT4 and UINT4 (opset 21) as it loads a model, so that
            weights of 4 bits and fewer are stored two in a byte; otherwise each takes a byte.
        stored: ``"integers"`` behind a DequantizeLinear; or ``"pairs"``: as floats that lie on the grid,
            behind a QuantizeLinear and a DequantizeLinear.
        blocks: weights of 4 bits and fewer may have a scale for each block of an axis (opset 21), which is
            computed in float.
        quantizes_floats: the runtime quantizes the float weight of an operator between quantized tensors by
            itself. To keep such an operator in float, its result is not quantized.
    """

    format: str = "int8"
    bits: int = 8
    narrow_range: bool = True
    per_axis: bool = True
    packed: bool = False
    stored: str = "integers"
    blocks: bool = False
    quantizes_floats: bool = False

    @property
    def integers(self) -> IntegerFormat:
        """The format itself."""
        base = BY_NAME[self.format]
        narrow = self.narrow_range and base.signed
        return IntegerFormat(min(base.bits, self.bits), signed=base.signed, narrow_range=narrow)


@dataclass(frozen=True)
class BiasRule:
    """``[bias]``: what a bias is stored as.

    Attributes:
        format: ``"int32"`` with the scale ``s_input * s_weight``, or ``"float"``: it is left as it is.
    """

    format: str = "int32"


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """``[op.NAME]``: how a target treats one operator type.

    Attributes:
        kind: ``"compute"`` asks for quantized inputs; ``"join"`` is integer when all its inputs and its
            output are quantized; ``"same"`` moves values, so that input and output share parameters;
            ``"clamp"`` disappears into the operator before it; ``"apart"`` stays float, and must not stand
            between two quantized tensors, where the runtime would take it for integer all the same.
        activations: which inputs are quantized. A join without it: all; a same: the first.
        weight: which input is the weight, if it is constant.
        weight_axis: axis of the weight's output channels.
        transpose_attribute: an attribute that, when 1, says that the weight is stored transposed.
        bias: which input is the bias.
        bias_add: a following Add of a constant vector counts as the bias.
        output: ``"always"`` quantizes the output, ``"asked"`` only if another operator asks for it.
        outputs: ``"first"``, or ``"all"`` where each output of a same must have its parameters, as a
            Split's.
        ties: a join's inputs and output share one scale and zero point, from the statistics of all.
        fused_behind: of a join: operators that it is merged into where it alone reads what they compute.
            That one input is then left float, and the others are quantized.
        unit_attributes: attributes that must be 1, in each entry, for an integer kernel.
        equal_attributes: attributes that must have this value for an integer kernel.
        merged_by: operators that the runtime merges this one into, in float, where they alone read it; a
            quantized output keeps the two apart.
        clamp_asks: with a Relu or Clip behind it there is an integer kernel only if its result is quantized.
        integer_kernel: false where the weight is stored as integers and computed in float.
        result: a format for the operator's result that is not the target's.
        weights: a format for its weight that is not the target's.
        note: a reason that is shown where ``integer_kernel`` is false, or ``kind`` is ``"apart"``.
        float_form: another operator that computes the same, as which this one is written where it stays float
            and one of ``float_form_before`` reads its result: the runtime merges it with them into a slower
            kernel, and the other not.
        float_form_before: those operators.
    """

    kind: str
    activations: list[int] = field(default_factory=list)
    weight: int | None = None
    weight_axis: int = 0
    transpose_attribute: str = ""
    bias: int | None = None
    bias_add: bool = False
    output: str = "asked"
    outputs: str = "first"
    ties: bool = False
    fused_behind: list[str] = field(default_factory=list)
    unit_attributes: list[str] = field(default_factory=list)
    equal_attributes: dict[str, str] = field(default_factory=dict)
    merged_by: list[str] = field(default_factory=list)
    clamp_asks: bool = False
    integer_kernel: bool = True
    result: ActivationRule | None = None
    weights: WeightRule | None = None
    note: str = ""
    float_form: str = ""
    float_form_before: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target's rules: the whole table.

    Attributes:
        name: what the user calls it.
        description: one line.
        opset: oldest ONNX opset that its Q/DQ form needs.
        activation: the integers of activations.
        weight: the integers of weights.
        bias: what a bias is stored as.
        op: a rule for each operator type that it knows; any other stays float.
        floats: why there is no rule for an operator, for the operators of which a user may wonder.
        runtime: ``"onnxruntime"`` where ONNX Runtime executes it on CPUs: what it makes of a model can be
            looked at. Without a runtime the table alone says what is integer.
        extends: the name of one of ptq's targets, whose table this one changes key by key; a list takes the
            place of the one there.

    Example:
        >>> from ptq_cli.plan.target.target_file import load_target
        >>> target = load_target("ort-cpu")
        >>> target.op["Conv"].output, target.activation_format.name
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
    extends: str = ""

    @property
    def activation_format(self) -> IntegerFormat:
        """The integers of activations."""
        return self.activation.integers

    @property
    def weight_format(self) -> IntegerFormat:
        """The integers of weights."""
        return self.weight.integers

    def weight_rule(self, op_type: str) -> WeightRule:
        """Return what holds for the weight of an operator type."""
        rule = self.op.get(op_type)
        return rule.weights if rule is not None and rule.weights is not None else self.weight

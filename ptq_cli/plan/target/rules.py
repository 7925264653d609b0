"""What a target's table says: one frozen dataclass for each of its tables."""

from dataclasses import dataclass, field

from ptq_cli.core.formats import INTEGERS, IntegerFormat
from ptq_cli.core.pair_sums import ACROSS, RESTART
from ptq_cli.models.integer_operators import DYNAMIC_LSTM
from ptq_cli.recipe.sections import FLOAT32

KINDS = ("compute", "join", "same", "clamp", "stored", "apart")
OUTPUTS = ("always", "asked")
STORED = ("integers", "pairs", "products")
BIASES = ("int32", "float")
CLAMPED_SUM = "clamped_sum"
INTEGER_FORMS = {CLAMPED_SUM: "HardSwish"}
"""Which operator each is a form of."""
QUICK_GELU = "QuickGelu"
"""ONNX Runtime's own operator for ``x * sigmoid(alpha * x)``."""
JOINED_AXES = "joined axes"
"""How an operator with ``join_axes`` is written."""
ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"
RUNTIME_TITLES = {ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
"""What their makers call the runtimes, by the name that a table has; ``runtime.engines`` runs them."""
RUNTIMES = ("", *RUNTIME_TITLES)
KERNELS = ("", DYNAMIC_LSTM)
PAIR_ORDERS = (ACROSS, RESTART)


@dataclass(frozen=True, kw_only=True)
class ActivationRule:
    """``[activation]``: the integer format of activations.

    Attributes:
        format: ``"uint8"``, ``"int8"``, ``"uint16"`` or ``"int16"``.
        symmetric: the zero point is 0, or the middle of an unsigned format. An override that asks for
            another zero point is refused.
        simulated: further formats that an override may ask for. The target computes them in float, between
            a QuantizeLinear and a DequantizeLinear.
        formats: further formats that a recipe may ask for, which the target computes in integers, or in the
            float type that it names: ``"float8e4m3fn"``.
        mixed: an operator may read integers of one of these formats and make those of another; otherwise it
            is computed in float then.
        clipped: a recipe may ask for 2 to 7 bits: a Clip of the integers, between a QuantizeLinear and a
            DequantizeLinear, leaves the operators around it with their integer kernels.
        channel_multiple: the channels that a QuantizeLinear brings to a Conv, as those of an image, are
            padded to a multiple of this number, which the runtime's kernels are faster with; 1 leaves them.
    """

    format: str = "uint8"
    symmetric: bool = False
    simulated: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    mixed: bool = False
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
        bits: how many bits of the format are used; fewer than 8 keep the sums of a kernel from saturating.
        narrow_range: the most negative integer is not used.
        per_axis: one scale per output channel; otherwise one scale for the whole weight.
        packed: the runtime unpacks constants of INT4 and UINT4 (opset 21) when it loads a model, so that two
            weights of 4 bits or fewer are stored in one byte; otherwise each takes a byte.
        stored: ``"integers"``, behind a DequantizeLinear; ``"pairs"``: floats with values on the grid,
            behind a QuantizeLinear and a DequantizeLinear; or ``"products"``: integers behind a Cast and a
            Mul by the scale, which a runtime that keeps each DequantizeLinear computes when it loads the
            model. Only operators of kind ``"stored"`` have products.
        blocks: weights of 4 bits or fewer may have one scale per block of an axis (opset 21); these are
            computed in float.
        formats: float types that a recipe may ask for instead of integers: ``"float8e4m3fn"``. They are
            stored as they are, behind a DequantizeLinear.
        quantizes_floats: the runtime itself quantizes the float weight of an operator between quantized
            tensors. To keep such an operator in float, ptq leaves its result in float.
        channel_multiple: the channels between Convs are padded to a multiple of this number, with weights of
            0, where nothing else sees how many they are; 1 leaves them. It changes no result.
        pair_sum: how large the magnitudes of two weights of one sign may be together that a kernel multiplies
            with 8-bit activations and adds in 16 bits: 128, which no sum of two products exceeds. Scales are
            as much larger as the worst pair of their channel needs; 0 leaves them.
        pair_orders: which weights are a pair: ``"across"``, if pairs of channels run on from one position of
            a filter to the next, and ``"restart"``, if they begin anew at each. With both, either kernel is
            exact.
        preserve_sums: the weights of a Conv are rounded so that their errors add up to 0 in each filter and
            in each channel; otherwise each to the nearest integer.
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
        bits: that a weight may have; a weight with fewer is stored with the next larger number.
    """

    kernel: str
    sizes: list[int]
    bits: list[int]


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """``[op.NAME]``: how a target treats one operator type.

    Attributes:
        kind: ``"compute"`` requests quantized inputs; ``"join"`` is integer if all its inputs and its output
            are quantized; ``"same"`` moves values, so that input and output share parameters; ``"clamp"``
            disappears into the operator before it; ``"stored"`` keeps its activations in float, and only its
            weights are integers; ``"apart"`` stays float, and is never put between two quantized tensors,
            where the runtime would compute it in integers.
        activations: which inputs are quantized. Default: all for a ``"join"``, the first for a ``"same"``.
        weight: index of the input that is the weight, if it is constant.
        constants: which inputs of a ``"stored"`` are weights; all of them are integers, or none is.
        weight_axis: axis of the weight's output channels.
        transpose_attribute: name of an attribute that is 1 if the weight is stored transposed.
        bias: index of the input that is the bias.
        bias_add: a following Add of a constant vector counts as the bias. With ``output = "always"`` the
            result behind it is quantized, or that before it where ONNX Runtime does not merge the two.
        output: ``"always"`` quantizes the output, ``"asked"`` only if another operator asks for it.
        outputs: ``"first"``, or ``"all"`` if every output of a ``"same"`` shares the parameters, as with
            Split.
        ties: the inputs and the output of a ``"join"`` share one scale and zero point, from the statistics of
            all of them.
        fused_behind: operators that a ``"join"`` is merged into if it is the only reader of their result. The
            input from that operator then stays float, and the other inputs are quantized.
        unit_attributes: attributes that must be 1, in each entry, for an integer kernel.
        equal_attributes: attributes that must have this value for an integer kernel.
        merged_by: operators that the runtime merges this one into, in float, if they are the only readers of
            its result; a quantized output keeps the two separate.
        clamp_asks: if a Relu or Clip follows, there is an integer kernel only if its result is quantized.
        integer_kernel: false if the weight is stored as integers but computed in float.
        formats: the formats that there is a kernel for, if it is not all that the target has.
        fewest_channels: by format, how many input and output channels a weight must have for a kernel.
        largest_filter: by format, how many values a filter of a Conv may have for a kernel.
        result: a format for the operator's result, in place of the target's.
        weights: a format for the operator's weight, in place of the target's.
        blocks: the runtime's kernel for a weight with a scale for each block of its inputs, if the
            activations stay in float.
        kernel: ``"DynamicQuantizeLSTM"`` if the runtime has this operator, which computes the weights of an
            LSTM in integers and finds the ranges of its activations at each run.
        kernel_from: how many weights a direction has at least if ``kernel`` is used. Below that it is not
            faster.
        dynamic: the ONNX operator on integers that takes the place of a ``"compute"`` whose activations
            become integers at each run: ``"MatMulInteger"`` or ``"ConvInteger"``; empty if there is none.
        dynamic_note: why that is done only for layers that an override asks for; empty if it is done for all.
        note: the reason to show if ``integer_kernel`` is false or ``kind`` is ``"apart"``, or if the weights
            of a ``"stored"`` are computed in float.
        float_form: an equivalent operator that replaces this one if it stays float and one of
            ``float_form_before`` reads its result. Use it if the runtime merges this operator with them into
            a slower kernel, but not the equivalent one.
        float_form_before: the operators that ``float_form`` is for.
        join_axes: if it stays float and has several axes behind its own, these are joined into one by a
            Reshape before and behind it. Use it if the runtime transposes tensors of many axes slowly.
        integer_form: how a ``"join"`` that the target has no integer kernel for is written in operators that
            it has one for, if it is quantized: ``"clamped_sum"`` for a HardSwish.
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
    ties: bool = False
    fused_behind: list[str] = field(default_factory=list)
    unit_attributes: list[str] = field(default_factory=list)
    equal_attributes: dict[str, str] = field(default_factory=dict)
    merged_by: list[str] = field(default_factory=list)
    clamp_asks: bool = False
    integer_kernel: bool = True
    formats: list[str] = field(default_factory=list)
    fewest_channels: dict[str, int] = field(default_factory=dict)
    largest_filter: dict[str, int] = field(default_factory=dict)
    result: ActivationRule | None = None
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
    integer_form: str = ""


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
        floats: the reason to show for an operator type that has no rule.
        runtime: ``"onnxruntime"`` or ``"openvino"`` if that executes its models on CPUs: ptq then evaluates
            and times them there, and checks which kernels they get. Without a runtime only the table says
            what is integer.
        float_types: types that what is not quantized may have: ``"float32"``, and ``"float16"`` if the
            runtime computes in the types that a file has.
        runtime_operators: a model may hold ONNX Runtime's own operators where they are faster, and no other
            runtime can read it then: QuickGelu for ``x * sigmoid(x)`` between integers. Recurrent layers have
            ``kernel`` for that.
        extends: the name of a target that comes with ptq, whose table this one changes key by key; a list
            replaces the list there.

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
    float_types: list[str] = field(default_factory=lambda: [FLOAT32])
    runtime_operators: bool = False
    extends: str = ""

    @property
    def activation_format(self) -> IntegerFormat:
        """The integer format of activations."""
        return self.activation.integers

    @property
    def weight_format(self) -> IntegerFormat:
        """The integer format of weights."""
        return self.weight.integers

    def weight_rule(self, op_type: str) -> WeightRule:
        """Return the rule for the weight of an operator type."""
        rule = self.op.get(op_type)
        return rule.weights if rule is not None and rule.weights is not None else self.weight

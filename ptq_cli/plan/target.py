"""A target is data: which operators it computes in integers, read from a TOML table."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from ptq_cli.core.errors import RecipeValueError, require_known
from ptq_cli.core.formats import BY_NAME, IntegerFormat
from ptq_cli.recipe.decode import decode_table

TARGETS = Path(__file__).parent / "targets"
KINDS = ("compute", "join", "same", "clamp", "apart")


@dataclass(frozen=True)
class OpRule:
    """How a target treats one operator type.

    Attributes:
        kind: ``compute`` asks for quantized inputs; ``join`` is integer when all its inputs and its output
            are quantized; ``same`` moves values, so that input and output share parameters; ``clamp``
            disappears into the operator before it; ``apart`` stays float, and must not stand between two
            quantized tensors, where the runtime would take it for integer all the same.
        activations: which inputs are activations; of a compute operator.
        weight: which input is the weight, if it is constant.
        weight_axis: axis of the weight's output channels.
        transpose_attribute: an attribute that, when 1, says that the weight is stored transposed.
        bias: which input is the bias.
        bias_add: a following Add of a constant vector counts as the bias.
        output: ``always`` quantizes the output, ``asked`` only if another operator asks for it.
        unit_attributes: attributes that must be 1, in each entry, for an integer kernel.
        equal_attributes: attributes that must have this value for an integer kernel.
        merged_by: operators that the runtime merges this one into, in float, where they alone read it; a
            quantized output keeps the two apart.
        integer_kernel: false where the weight is stored as integers and computed in float.
        note: a reason that is shown where ``integer_kernel`` is false, or ``kind`` is ``apart``.
    """

    kind: str
    activations: list[int] = field(default_factory=list)
    weight: int | None = None
    weight_axis: int = 0
    transpose_attribute: str = ""
    bias: int | None = None
    bias_add: bool = False
    output: str = "asked"
    unit_attributes: list[str] = field(default_factory=list)
    equal_attributes: dict[str, str] = field(default_factory=dict)
    merged_by: list[str] = field(default_factory=list)
    integer_kernel: bool = True
    note: str = ""


@dataclass(frozen=True)
class ActivationRule:
    """Format of activations: ``uint8`` or ``int8``, and whether their zero point is fixed."""

    format: str = "uint8"
    symmetric: bool = False


@dataclass(frozen=True)
class WeightRule:
    """Format of weights, always symmetric; per output channel or per tensor.

    Attributes:
        format: the integers that kernels read.
        narrow_range: the most negative one is left out.
        per_axis: a scale for each output channel.
        packed: the runtime unpacks constants of INT4 and UINT4 (opset 21) as it loads a model, so that
            weights of 4 bits and fewer are stored two in a byte; otherwise each takes a byte.
    """

    format: str = "int8"
    narrow_range: bool = True
    per_axis: bool = True
    packed: bool = False


@dataclass(frozen=True)
class Target:
    """A target's rules.

    Attributes:
        name: what the user calls it.
        description: one line.
        opset: oldest ONNX opset that its Q/DQ form needs.
        activation: format of activations.
        weight: format of weights.
        op: a rule for each operator type that it knows; any other stays float.
        floats: why there is no rule for an operator, for the operators of which a user may wonder.

    Example:
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
    floats: dict[str, str] = field(default_factory=dict)

    @property
    def activation_format(self) -> IntegerFormat:
        """The integers of activations."""
        return BY_NAME[self.activation.format]

    @property
    def weight_format(self) -> IntegerFormat:
        """The integers of weights."""
        base = BY_NAME[self.weight.format]
        return IntegerFormat(base.bits, signed=base.signed, narrow_range=self.weight.narrow_range)


def target_names() -> tuple[str, ...]:
    """Return the names of the targets.

    Example:
        >>> target_names()
        ('ort-cpu',)
    """
    return tuple(sorted(path.stem for path in TARGETS.glob("*.toml")))


def load_target(name: str) -> Target:
    """Return the target of that name.

    Raises:
        UnknownNameError: there is none; the message lists those there are.
        RecipeKeyError: its table has an unknown key.
        RecipeValueError: a value in it makes no sense.
    """
    require_known("target", name, target_names())
    path = TARGETS / f"{name}.toml"
    target = decode_table(Target, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    for format_name in (target.activation.format, target.weight.format):
        require_known("format", format_name, BY_NAME)
    for op_type, rule in target.op.items():
        if rule.kind not in KINDS or rule.output not in ("always", "asked"):
            raise RecipeValueError(
                f"{path.name}: [op.{op_type}] has an unknown kind or output", hint=f"{KINDS}"
            )
    return target

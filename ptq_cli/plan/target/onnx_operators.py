"""What ONNX says of its operators, by which a user's table is checked."""

from collections.abc import Iterator
from functools import cache

import onnx

from ptq_cli.core.errors import did_you_mean
from ptq_cli.plan.target.rules import OpRule, Target

OUTPUT_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""The axis of a weight along which its operator has its output channels, where a Gemm's is not transposed."""


def operator_mistakes(target: Target) -> Iterator[tuple[str, str]]:
    """Yield what of a table no ONNX operator can be, and what to do.

    Example:
        >>> from ptq_cli.plan.target.rules import ActivationRule, WeightRule
        >>> rules = {"Cnov": OpRule(kind="join")}
        >>> target = Target(
        ...     name="npu",
        ...     description="an example",
        ...     opset=13,
        ...     activation=ActivationRule(),
        ...     weight=WeightRule(),
        ...     op=rules,
        ... )
        >>> [message for message, _ in operator_mistakes(target)]
        ["'op.Cnov' is no operator of ONNX (did you mean 'Conv'?)"]
    """
    newest = onnx.defs.onnx_opset_version()
    if target.opset > newest:
        yield f"'opset' is {target.opset}, ONNX {onnx.__version__} has {newest}", f"write {newest} or less"
    inputs = _most_inputs()
    for key, names in (("op", target.op), ("floats", target.floats)):
        for name in names:
            if name not in inputs:
                mistake = f"'{key}.{name}' is no operator of ONNX{did_you_mean(name, list(inputs))}"
                yield mistake, "write its type as a model does: Conv, MatMul"
    for name, rule in target.op.items():
        if name in inputs:
            yield from _rule_mistakes(name, rule, inputs[name])


def _rule_mistakes(name: str, rule: OpRule, inputs: int) -> Iterator[tuple[str, str]]:
    for key, numbers in (("activations", rule.activations), ("weight", [rule.weight]), ("bias", [rule.bias])):
        for number in numbers:
            if number is not None and number >= inputs:
                mistake = f"'op.{name}.{key}' counts input {number}, {name} has {inputs}"
                yield mistake, "inputs are counted from 0"
    wanted = OUTPUT_CHANNELS.get(name)
    # Without the attribute a table may speak of transposed weights alone.
    if name == "Gemm" and not rule.transpose_attribute:
        wanted = None
    if rule.weight is not None and wanted is not None and rule.weight_axis != wanted:
        mistake = (
            f"'op.{name}.weight_axis' is {rule.weight_axis}, {name} has its output channels along {wanted}"
        )
        yield mistake, f"write {wanted}; per_axis = false takes one scale for the whole weight"


@cache
def _most_inputs() -> dict[str, int]:
    return {schema.name: schema.max_input for schema in onnx.defs.get_all_schemas() if schema.domain == ""}

"""ONNX's own operator definitions, which a user's target table is checked against."""

from collections.abc import Iterator
from functools import cache

import onnx

from ptq_cli.core.known_names import did_you_mean
from ptq_cli.plan.target.rules import OpRule, Target

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

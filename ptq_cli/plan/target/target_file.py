"""Load a target's table: one that comes with ptq, by its name, or a user's TOML file."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ptq_cli.core.entry_points import TARGETS as PLUGINS
from ptq_cli.core.entry_points import Plugin, find_plugin, plugin_names
from ptq_cli.core.errors import RecipeValueError
from ptq_cli.core.formats import FLOATS, INTEGERS
from ptq_cli.core.pair_sums import LARGEST_SUM, RESTARTED
from ptq_cli.core.read_files import read_toml
from ptq_cli.core.words import did_you_mean, require_known
from ptq_cli.plan.target.rules import (
    BIASES,
    INTEGER_FORMS,
    KERNELS,
    KINDS,
    ONNXRUNTIME,
    OUTPUTS,
    PAIR_ORDERS,
    RUNTIMES,
    STORED,
    ActivationRule,
    OpRule,
    Target,
    WeightRule,
)
from ptq_cli.recipe.locations import is_target_file
from ptq_cli.recipe.recipe_layers import merge_tables
from ptq_cli.recipe.schema import decode_table
from ptq_cli.recipe.sections import FLOAT_TYPES

__all__ = ["OpRule", "Target", "known_targets", "load_target", "target_names"]
TABLES_FOLDER = Path(__file__).parent / "tables"
_ACTIVATIONS = ("uint8", "int8", "uint16", "int16")
_WEIGHTS = ("int8",)
OLDEST, _WIDE = 13, 21  # the first opset with a scale per channel, and the first with 16-bit integers
_MOST_CHANNELS = 64
KEYS_OF_KIND = {
    "join": ("ties", "fused_behind", "fixed"),
    "same": ("outputs",),
    "compute": ("weight", "bias", "merged_by", "dynamic", "dynamic_note"),
    "stored": ("constants", "kernel", "kernel_from"),
}
LARGEST_OF_ALL = 254  # sum of two weights of 8 bits in a narrow range: a limit above it would be none
Checks = Iterator[tuple[bool, str, str]]  # Checks: whether it passed, the message if it did not, and the hint


def target_names() -> tuple[str, ...]:
    """Return the names of the targets that come with ptq."""
    return tuple(sorted(path.stem for path in TABLES_FOLDER.glob("*.toml")))


def known_targets() -> tuple[str, ...]:
    """Return the names of all targets: those that come with ptq, and those of plug-ins."""
    return (*target_names(), *plugin_names(PLUGINS))


def load_target(name: str) -> Target:
    """Return the target of this name, or of a TOML file: a path that ends with ``.toml`` or has a folder."""
    if is_target_file(name):
        return _checked_by_onnx(_read_target(Path(name), os.path.relpath(name)), os.path.relpath(name))
    plugin = find_plugin(PLUGINS, name, target_names())
    if plugin is not None:
        return _target_of(plugin)
    require_known("target", name, known_targets())
    return _own_target(TABLES_FOLDER / f"{name}.toml")


def _target_of(plugin: Plugin) -> Target:
    path = plugin.load()
    if not isinstance(path, str | os.PathLike):
        raise plugin.failed(f"is a {type(path).__name__}, expected the path of a TOML file")
    where = f"the table of the package {plugin.package} {plugin.version}"
    target = _plugin_target(Path(path), where)
    if target.name != plugin.name:
        raise plugin.failed(f"has a table whose 'name' is '{target.name}'")
    return target


@cache
def _plugin_target(path: Path, where: str) -> Target:
    return _checked_by_onnx(_read_target(path, where), where)


@cache
def _own_target(path: Path) -> Target:
    # Several stages of a command load it, and reading it takes longer than planning a small graph.
    return _read_target(path, path.name)


def _read_target(path: Path, where: str) -> Target:
    target = decode_table(Target, _whole_table(path, where), where)
    for holds, message, hint in _checks(target):
        if not holds:
            raise RecipeValueError(f"{where}: {message}", hint=hint)
    return target


def _checked_by_onnx(target: Target, where: str) -> Target:
    from ptq_cli.plan.target.rules import (
        operator_mistakes,  # onnx takes long to import, and ptq's own tables are tested
    )

    for message, hint in operator_mistakes(target):
        raise RecipeValueError(f"{where}: {message}", hint=hint)
    return target


def _whole_table(path: Path, where: str) -> dict[str, Any]:
    table = read_toml(path, "target", where)
    base = table.get("extends")
    if not base or not isinstance(base, str):
        return table
    require_known("target", base, target_names())
    whole = _whole_table(TABLES_FOLDER / f"{base}.toml", f"{base}.toml")
    return merge_tables({key: value for key, value in whole.items() if key != "name"}, table)


def _checks(target: Target) -> Checks:
    yield bool(target.name.strip()), "'name' is empty", "give the target a name"
    yield target.opset >= OLDEST, f"'opset' is {target.opset}, expected {OLDEST} or later", "write 13"
    yield from _one_of("bias.format", target.bias.format, BIASES)
    yield from _one_of("runtime", target.runtime, RUNTIMES)
    for name in target.float_types:
        yield from _one_of("float_types", name, FLOAT_TYPES)
    yield from _activation("activation", target.activation, target.opset)
    yield from _weight("weight", target.weight)
    is_padded = max(target.activation.channel_multiple, target.weight.channel_multiple) > 1
    yield (
        not (is_padded and target.weight.pair_sum) or RESTARTED in target.weight.pair_orders,
        f"'weight.pair_orders' has no '{RESTARTED}', but where channels are padded, pairs start again",
        f"add '{RESTARTED}', or write channel_multiple = 1",
    )
    for op_type, rule in target.op.items():
        yield from _operator(f"op.{op_type}", rule, target.opset)
        yield from _stored(f"op.{op_type}", op_type, rule, target)
    yield (
        not target.runtime_operators or target.runtime == ONNXRUNTIME,
        "'runtime_operators' is true, but these are operators of ONNX Runtime",
        "remove it, or set runtime = 'onnxruntime' if ONNX Runtime executes the model",
    )
    yield (
        any(rule.kind == "compute" for rule in target.op.values()),
        "no [op.…] has kind 'compute'",
        "without one nothing is quantized; see docs/targets.md",
    )


def _operator(where: str, rule: OpRule, opset: int) -> Checks:
    yield from _one_of(f"{where}.kind", rule.kind, KINDS)
    yield from _one_of(f"{where}.output", rule.output, OUTPUTS)
    yield from _one_of(f"{where}.outputs", rule.outputs, ("first", "all"))
    yield (
        rule.kind != "compute" or bool(rule.activations),
        f"'{where}.activations' is missing",
        "name the inputs that are quantized, such as [0]",
    )
    numbers = [*rule.activations, *rule.constants, rule.weight or 0, rule.bias or 0]
    yield min(numbers) >= 0, f"'{where}' names an input below 0", "inputs are counted from 0"
    for kind, keys in KEYS_OF_KIND.items():
        for key in keys:
            is_set = getattr(rule, key) not in (None, False, [], {}, "first", "", 0)
            message = f"'{where}.{key}' belongs to kind '{kind}', but this kind is '{rule.kind}'"
            yield not is_set or rule.kind == kind, message, f"remove '{key}'"
    form = INTEGER_FORMS.get(rule.integer_form, "")
    yield from _one_of(f"{where}.integer_form", rule.integer_form, ("", *INTEGER_FORMS))
    fits = not form or (rule.kind == "join" and where == f"op.{form}")
    message = f"'{where}.integer_form' is '{rule.integer_form}', which is a form of {form} as a 'join' alone"
    yield fits, message, "remove 'integer_form'"
    needs_note = rule.kind in ("apart", "stored") or not rule.integer_kernel
    yield bool(rule.note) or not needs_note, f"'{where}.note' is missing", "say why it stays float"
    for key in ("formats", "fewest_channels", "largest_filter"):
        for name in getattr(rule, key):
            yield from _one_of(f"{where}.{key}", name, (*_ACTIVATIONS, *FLOATS))
    for name, grid in rule.fixed.items():
        yield from _one_of(f"{where}.fixed", name, _ACTIVATIONS)
        is_grid = len(grid) == 2 and grid[0] > 0 and INTEGERS[name].qmin <= grid[1] <= INTEGERS[name].qmax
        message = f"'{where}.fixed.{name}' is {grid}, expected a scale and a zero point of that format"
        yield is_grid, message, "such as [0.00390625, 0]"
    if rule.result is not None:
        yield from _activation(f"{where}.result", rule.result, opset)
    if rule.weights is not None:
        yield from _weight(f"{where}.weights", rule.weights)


def _stored(where: str, op_type: str, rule: OpRule, target: Target) -> Checks:
    """Check what an operator says of weights that are integers although its activations are not."""
    yield (
        rule.kind != "stored" or bool(rule.constants),
        f"'{where}.constants' is missing",
        "name the inputs that are weights, such as [1, 2]",
    )
    yield from _one_of(f"{where}.kernel", rule.kernel, KERNELS)
    has_kernel = op_type == "LSTM" and target.runtime == ONNXRUNTIME
    yield (
        not rule.kernel or has_kernel,
        f"'{where}.kernel' is {rule.kernel}, which ONNX Runtime has for LSTM only",
        "remove 'kernel', or set runtime = 'onnxruntime' if ONNX Runtime executes the model",
    )
    products = target.weight_rule(op_type).stored == "products"
    yield (
        not products or rule.kind == "stored",
        f"'{where}' has weights with stored = 'products', which belongs to kind 'stored'",
        "write stored = 'integers'",
    )


def _activation(where: str, rule: ActivationRule, opset: int) -> Checks:
    yield from _multiple(where, rule.channel_multiple)
    for key, names in (("format", [rule.format]), ("formats", rule.formats), ("simulated", rule.simulated)):
        known = (*_ACTIVATIONS, *FLOATS) if key == "formats" else _ACTIVATIONS
        for name in names:
            yield from _one_of(f"{where}.{key}", name, known)
    if rule.format in _ACTIVATIONS:
        wide = rule.integers.bits > INTEGERS["int8"].bits
        yield (
            not wide or opset >= _WIDE,
            f"'{where}.format' is {rule.format}, which needs opset {_WIDE}",
            f"write opset = {_WIDE}",
        )


def _multiple(where: str, number: int) -> Checks:
    message = f"'{where}.channel_multiple' is {number}, expected 1 to {_MOST_CHANNELS}"
    yield 1 <= number <= _MOST_CHANNELS, message, "write 1 to leave the channels as they are"


def _weight(where: str, rule: WeightRule) -> Checks:
    yield from _multiple(where, rule.channel_multiple)
    yield from _one_of(f"{where}.format", rule.format, _WEIGHTS)
    yield from _one_of(f"{where}.stored", rule.stored, STORED)
    for name in rule.formats:
        yield from _one_of(f"{where}.formats", name, tuple(FLOATS))
    yield (
        rule.pair_sum == 0 or LARGEST_SUM <= rule.pair_sum < LARGEST_OF_ALL,
        f"'{where}.pair_sum' is {rule.pair_sum}, expected 0 or {LARGEST_SUM} to {LARGEST_OF_ALL - 1}",
        f"write {LARGEST_SUM}, which is exact with every kernel that is known, or 0 for no limit",
    )
    for name in rule.pair_orders:
        yield from _one_of(f"{where}.pair_orders", name, PAIR_ORDERS)
    yield (
        bool(rule.pair_orders) or not rule.pair_sum,
        f"'{where}.pair_orders' is empty",
        f"name the orders of the kernels, such as {list(PAIR_ORDERS)}, or set pair_sum = 0",
    )
    yield 2 <= rule.bits <= 8, f"'{where}.bits' is {rule.bits}, expected 2 to 8", "write a number from 2 to 8"
    yield (
        rule.packed or not rule.blocks,
        f"'{where}.blocks' needs packed = true",
        "set packed = true, or remove 'blocks'",
    )
    pairs = rule.stored == "pairs"
    message = f"'{where}.packed' has no effect with stored = 'pairs'"
    yield not (pairs and rule.packed), message, "remove 'packed' or 'stored'"


def _one_of(key: str, value: str, known: tuple[str, ...]) -> Checks:
    names = ", ".join(f"'{name}'" for name in known)
    message = f"'{key}' is '{value}'{did_you_mean(value, list(known))}, expected one of {names}"
    yield value in known, message, f"correct '{key}'"

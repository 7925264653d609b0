"""``docs/targets.md``: what a target is, one written from scratch, and every key of its table."""

import inspect
import json
import types
import typing
from dataclasses import MISSING, Field, fields
from typing import Any

from ptq_cli.plan.target.rules import ActivationRule, BiasRule, OpRule, Target, WeightRule
from ptq_cli.plan.target.target_file import load_target, target_names
from tools.recipe_page import attribute_texts
from tools.tables import code, table

INTRODUCTION = """\
# Targets

A target says what a runtime computes in integers, and what a model must look like for that. It is a table
of rules; placement is [one algorithm](decisions/0003-targets-as-tables.md) over it.

```bash
ptq quantize model.onnx --data images/ --target tensorrt
ptq inspect model.onnx --target ./my-npu.toml
```

In a recipe it is `target = "./my-npu.toml"` in `[quantization]`, relative to the recipe's folder. A name
that ends with `.toml` or holds a `/` is a file. A calibration measures what its target
quantizes. `ptq export --target` takes another one for it, where that quantizes nothing else: what `ort-cpu`
measures is most often enough for `tensorrt`, and an error names what is not.

## The targets of ptq

{targets}

- **ort-cpu.** What it calls integer was counted in the graph that ONNX Runtime 1.31 makes of it. On such
  CPUs (VNNI, ARM dotprod) products of bytes are added in 32 bits.
- **ort-cpu-avx2.** Without VNNI, two products are added in 16 bits, and saturate; with weights of 7 bits
  they cannot. `--weight-bits 8` is refused.
- **tensorrt.** A Conv's input is quantized and its result is not. Of an Add the side that a Conv alone
  gives stays as it is, so that Conv, Add and Relu become one kernel, and the other side, the residual, is
  quantized. All sides of a Concat have one scale. A bias stays float. Weights are floats on the grid
  behind a QuantizeLinear and a DequantizeLinear, which every version of TensorRT reads
  ([0017](decisions/0017-targets-that-cannot-be-run-here.md)); so the file is as large as the float one,
  and the engine is not.
- **generic.** For compilers that ptq knows nothing of. ONNX Runtime runs it, a Conv before a Relu in
  float: with a zero point of 0 the Relu does not disappear into the range.

Tied tensors have one scale and zero point, decided from the union of their statistics, which merge
exactly. What only moves values (Reshape, MaxPool, Split) shares the parameters of what it moves.

`ptq verify` checks a file against the table, whoever made it. Layers are kept in float, or given other
integers, with `--exclude`, `--include` and [`[[override]]`](recipe.md#override); what the target cannot do
is an error that names the target and the layer.

## One written from scratch

Of an accelerator is known: activations and weights are int8 with zero points of 0, the bias is int32; it
has Conv, Gemm, Add and Concat, the last by copying bytes; it has a table for Sigmoid that gives uint8;
pooling and reshaping move bytes; a Relu is part of the operator before it. It adds in 32 bits, but
multiplies with 7 bits of a weight.

```toml
{example}```

```bash
ptq quantize model.pt --data calib --target ./my-npu.toml
```

Where a runtime is much like one that ptq knows, `extends` takes its table, and the file holds what
differs, key by key:

```toml
{extending}```

A table is read strictly: an unknown key, a value of the wrong type and a key of another kind of operator
are errors that name the file, the key, and the nearest known one. So are an operator that ONNX does
not have, an input that it does not take, and another axis than that of its output channels.

## Every key
"""
EXAMPLE = """\
name = "my-npu"
description = "an accelerator with symmetric int8 and a table for Sigmoid"
opset = 13

[activation]
format = "int8"
symmetric = true

[weight]
format = "int8"
bits = 7

[bias]
format = "int32"

# What pays asks for quantized inputs; the kernel gives integers.
[op.Conv]
kind = "compute"
activations = [0]
weight = 1
weight_axis = 0
bias = 2
output = "always"

[op.Gemm]
kind = "compute"
activations = [0]
weight = 1
weight_axis = 1
transpose_attribute = "transB"
bias = 2
output = "always"
unit_attributes = ["alpha", "beta"]

# Integer where all sides are.
[op.Add]
kind = "join"

[op.Concat]
kind = "join"
ties = true

[op.Sigmoid]
kind = "join"
result = { format = "uint8", symmetric = false }

# Moves bytes.
[op.MaxPool]
kind = "same"

[op.Reshape]
kind = "same"

[op.Flatten]
kind = "same"

[op.Relu]
kind = "clamp"

[floats]
Softmax = "the accelerator has no exponential"
"""
EXTENDING = """\
name = "tensorrt-10"
description = "TensorRT 10 and later, with weights as integers"
extends = "tensorrt"

[weight]
stored = "integers"
"""
SECTIONS: tuple[tuple[str, type], ...] = (
    ("The top level", Target),
    ("[activation]", ActivationRule),
    ("[weight]", WeightRule),
    ("[bias]", BiasRule),
    ("[op.NAME]", OpRule),
)
BYTE = 8
TABLES = ("activation", "weight", "bias", "op", "floats")
"""Keys of the top level that are tables."""


def target_page() -> str:
    """Return the page."""
    rows = []
    for name in target_names():
        target = load_target(name)
        bits = f", {target.weight.bits} bits of it" if target.weight.bits < BYTE else ""
        zero = "zero point 0" if target.activation.symmetric else "any zero point"
        stored = ", as pairs" if target.weight.stored == "pairs" else ""
        rows.append(
            (
                code(name),
                f"{target.activation.format}, {zero}",
                f"{target.weight.format}{bits}{stored}",
                target.bias.format,
                target.description,
            )
        )
    targets = table(["target", "activations", "weights", "bias", "what it is"], rows)
    introduction = INTRODUCTION.format(targets=targets, example=EXAMPLE, extending=EXTENDING)
    return "\n".join([introduction, *(_section(title, kind) for title, kind in SECTIONS)])


def _section(title: str, kind: type) -> str:
    meanings, hints = attribute_texts(kind), typing.get_type_hints(kind)
    rows = [
        (code(item.name), _type(item.name, hints[item.name]), _default(item), _sentence(meanings[item.name]))
        for item in fields(kind)
    ]
    summary = (inspect.getdoc(kind) or "").splitlines()[0].partition(": ")[2].replace("``", "`")
    about = _sentence(summary)
    return f"### {title}\n\n{about}\n\n{table(['key', 'type', 'default', 'meaning'], rows)}\n"


def _type(name: str, hint: Any) -> str:
    if name in TABLES:
        return "table"
    if isinstance(hint, types.UnionType):
        hint = next(item for item in typing.get_args(hint) if item is not types.NoneType)
    if hint in (ActivationRule, WeightRule):
        return f"table like [{'activation' if hint is ActivationRule else 'weight'}]"
    words = {str: "text", int: "whole number", bool: "true or false"}
    if typing.get_origin(hint) is list:
        return "list of whole numbers" if typing.get_args(hint)[0] is int else "list of texts"
    return "table of texts" if typing.get_origin(hint) is dict else words[hint]


def _default(item: Field[Any]) -> str:
    if item.default is MISSING and item.default_factory is MISSING:
        return "wanted"
    value = item.default if item.default is not MISSING else None
    if value is None or value == "":
        return "none"
    return code(json.dumps(value))


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."

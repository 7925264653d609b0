"""``docs/targets.md``: what a target is, an example written from scratch, and every key of its table."""

import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from ptq_cli.plan.target.rules import ActivationRule, BiasRule, BlockRule, OpRule, Target, WeightRule
from ptq_cli.plan.target.target_file import load_target, target_names
from tools.tables import code, listed, table

INTRODUCTION = """\
# Targets

A target is a table of rules: which operators a runtime computes in integers, and what a model must look like
for that. `--target` takes a name, or a `.toml` file with [a table of your own](#write-a-target-from-scratch).
A calibration can be exported for another target that quantizes no further tensors, as `tensorrt` after
`ort-cpu`.

<!-- folder: digits -->
```bash
ptq inspect model.onnx --target openvino
ptq quantize model.onnx --data calib.npz --target tensorrt
```

## Targets that come with ptq

{targets}

- **ort-cpu** follows the graphs that ONNX Runtime 1.31 makes.
- **openvino** (`pip install 'ptq-cli[openvino]'`) follows those of OpenVINO 2026.4, on which `ptq evaluate`,
  `verify`, `bench` and the gates run, in float32 where they are not integer. `ptq analyze` runs on ONNX
  Runtime, and `--prefer latency` is refused. On ARM, OpenVINO computes Convs whose input has another zero
  point than 0 in float, and [cannot compile](../benchmarks/RESULTS.md#openvino-on-arm) a file of `ort-cpu`
  with padded channels of an image.
- **tensorrt** ([page](tensorrt.md)): the side of a residual Add that comes from a Conv stays float, so that
  Conv, Add and Relu are one kernel. Inputs and output of a Concat share one scale. Weights are floats behind
  a pair: the file is as large as float, the engine is not.
- **qnn** ([guide](guides/qualcomm.md)) is for Qualcomm's HTP.
- **generic** is for compilers that ptq does not know. ONNX Runtime computes its Conv before a Relu in float.

Weights of LSTM, GRU and RNN are int8 without calibration; `tensorrt` keeps them in float. `ort-cpu` computes
an LSTM from 32,768 weights in a direction on with DynamicQuantizeLSTM, which finds ranges at each run, and
others in float; `kernel = ""` under `[op.LSTM]` computes all in float.

Tied tensors share one scale and zero point. `--exclude` and [`[[override]]`](recipe.md#override) keep layers
in float or give them other integers; what the target cannot do is an error.

## The same sums on every processor

On x86 processors without VNNI (most of AMD before Zen 4, of Intel before Ice Lake) the kernels of ONNX
Runtime and OpenVINO add two products of an unsigned activation and a signed weight in 16 bits, which
saturate if two weights of one sign have magnitudes of more than 128 together. (Those for AVX and SSE alone
add in 32 bits.) So `ort-cpu`, `openvino` and
`generic` (`weight.pair_sum = 128`) enlarge each channel's scale by what its worst pair needs: the sums are
the same with VNNI and without, on ARM and in WebAssembly, at the same speed.

That costs [up to 1.3 dB](../benchmarks/RESULTS.md#weights-for-every-processor) on most networks, which
rounding, or recovery, wins back. If all your processors have VNNI,
[`ort-cpu-vnni.toml`](../configs/README.md#targets) lets weights take the whole of 8 bits. `ptq verify` counts
[in any file](verify.md#on-every-processor) what can saturate. Rounding differs anyway: float operators in
their last bits, and on ARM a QLinearAdd by a step.

## Weights alone

Kernels that read a scale for each block, for `--set activations.mode=float` ([page](weight_only.md)):

{blocks}

## Ranges found at each run

For `--set activations.mode=dynamic` ([page](dynamic.md)):

{dynamic}

## Write a target from scratch

An accelerator with a table for Sigmoid that gives uint8, and products with 7 bits of a weight:

<!-- folder: cifar10_cnn -->
<!-- file: my-npu.toml -->
```toml
{example}```

```bash
ptq quantize model.pt --data calib --target ./my-npu.toml --min sqnr_db=15
ptq verify --target ./my-npu.toml
```

`ptq verify` checks the file against the table. `extends` starts from another table:

<!-- file: tensorrt-10.toml -->
```toml
{extending}```

```bash
ptq inspect model.pt --target ./tensorrt-10.toml
```

[`configs/targets`](../configs/README.md#targets) has files to copy.

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

# Compute operators request quantized inputs; these kernels return integers.
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

# Integer if all inputs and the output are.
[op.Add]
kind = "join"

[op.Concat]
kind = "join"
ties = true

[op.Sigmoid]
kind = "join"
result = { format = "uint8", symmetric = false }

# These move bytes.
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
    ("[op.NAME.blocks]", BlockRule),
)
BYTE = 8
TABLES = ("activation", "weight", "bias", "op", "floats")  # Top-level keys that are tables


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
    targets = table(["target", "activations", "weights", "bias", "description"], rows)
    blocks = table(["target", "operator", "kernel", "bits", "block sizes"], list(_block_rows()))
    dynamic = table(["target", "operator", "written as", "if"], list(_dynamic_rows()))
    introduction = INTRODUCTION.format(
        targets=targets, blocks=blocks, dynamic=dynamic, example=EXAMPLE, extending=EXTENDING
    )
    return "\n".join([introduction, *(_section(title, kind) for title, kind in SECTIONS)])


def _dynamic_rows() -> Iterator[tuple[str, ...]]:
    """Yield each operator that makes integers of its activations at each run."""
    for name in target_names():
        for operator, rule in load_target(name).op.items():
            if rule.dynamic:
                asked = (
                    f"an override asks for it: {rule.dynamic_note}"
                    if rule.dynamic_note
                    else "its weight is constant"
                )
                yield code(name), operator, rule.dynamic, asked


def _block_rows() -> Iterator[tuple[str, ...]]:
    """Yield each operator whose weight a runtime's kernel reads in blocks."""
    for name in target_names():
        for operator, rule in load_target(name).op.items():
            if (blocks := rule.blocks) is not None:
                bits, sizes = (", ".join(map(str, item)) for item in (blocks.bits, blocks.sizes))
                yield code(name), operator, blocks.kernel, bits, sizes


def _section(title: str, kind: type) -> str:
    meanings, hints = _described(inspect.getdoc(kind) or ""), typing.get_type_hints(kind)
    rows = [
        (code(item.name), _type(item.name, hints[item.name]) + _default(item), _sentence(meanings[item.name]))
        for item in fields(kind)
    ]
    summary = (inspect.getdoc(kind) or "").splitlines()[0].partition(": ")[2].replace("``", "`")
    about = _sentence(summary)
    return f"### {title}\n\n{about}\n\n{listed(rows)}\n"


def _described(text: str) -> dict[str, str]:
    """Return the descriptions in the ``Attributes:`` of a docstring by name, each in one line."""
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in text.partition("Attributes:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if match := re.match(r"    (\w+(?:, \w+)*): (.*)", line):
            names = match[1].split(", ")
            texts |= dict.fromkeys(names, match[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {key: text.replace("``", "`") for key, text in texts.items()}


def _type(name: str, hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        hint = next(item for item in typing.get_args(hint) if item is not types.NoneType)
    if name in TABLES and hint is not int:  # an operator's weight and bias are input numbers
        return "table"
    if hint is BlockRule:
        return "table"
    if hint in (ActivationRule, WeightRule):
        return f"table like [{'activation' if hint is ActivationRule else 'weight'}]"
    words = {str: "str", int: "int", bool: "bool"}
    if typing.get_origin(hint) is list:
        return "list[int]" if typing.get_args(hint)[0] is int else "list[str]"
    return "table" if typing.get_origin(hint) is dict else words[hint]


def _default(item: Field[Any]) -> str:
    if item.default is MISSING and item.default_factory is MISSING:
        return ", required"
    value = item.default if item.default is not MISSING else None
    if value is None or value == "":
        return ""
    return f", {code(json.dumps(value))}"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."

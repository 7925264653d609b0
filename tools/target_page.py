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
from tools.tables import code, table

INTRODUCTION = """\
# Targets

A target is a [table of rules](decisions/0006-targets-as-tables.md): which operators a runtime computes in
integers, and what a model must look like for that.

<!-- folder: digits -->
```bash
ptq inspect model.onnx --target openvino
ptq quantize model.onnx --data calib.npz --target tensorrt
```

A name that ends with `.toml` or contains a `/` is a file with [a table of your
own](#write-a-target-from-scratch); in a recipe, its path is relative to the recipe. A calibration can be
exported for another target that quantizes no further tensors, as `tensorrt` after `ort-cpu`.

## Targets that come with ptq

{targets}

- **ort-cpu** follows the graphs that ONNX Runtime 1.31 makes.
- **openvino** (`pip install 'ptq-cli[openvino]'`) follows the execution graphs of OpenVINO 2026.4.
  `ptq evaluate`, `verify`, `bench` and the gates run on OpenVINO
  ([0007](decisions/0007-runtimes-and-float-formats.md)), with float32 for what is not integer; `ptq
  analyze` runs on ONNX Runtime. `--prefer latency` is refused: its operators cannot be measured one by
  one. On ARM, OpenVINO 2026.4 computes Convs whose input has another zero point than 0 in float, and
  a file of `ort-cpu` with padded channels of an image fails to compile there ("Convolution input precision
  should be single"): use this target ([measured](../benchmarks/RESULTS.md#openvino-on-arm)).
- **tensorrt** ([tensorrt.md](tensorrt.md)): of a residual Add, the side that comes from a Conv stays
  float, so that Conv, Add and Relu become one kernel. All inputs and the output of a Concat share one
  scale. Weights are floats on the grid behind a pair ([0006](decisions/0006-targets-as-tables.md)): the
  file is as large as the float model, the engine is not.
- **qnn** ([guide](guides/qualcomm.md)) is for Qualcomm's HTP: pairs of one type around every operator,
  uint16 by an override, Sigmoid, Tanh and Softmax with the scales that their kernels have built in, static
  shapes (`--input-shape batch=1`). `ptq verify` and `evaluate` run on the HTP simulator where it is installed
  ([0028](decisions/0028-the-htp-and-its-simulator.md)).
- **generic** is for compilers that ptq does not know. ONNX Runtime computes its Conv before a Relu in
  float.

The weights of LSTM, GRU and RNN are int8 and need no calibration; `tensorrt` keeps them in float.
`ort-cpu` computes an LSTM from 32,768 weights in a direction on with DynamicQuantizeLSTM, which finds
ranges at each run, and others in float; `kernel = ""` under `[op.LSTM]` in a table of your own computes
all of them in float ([0010](decisions/0010-weights-in-the-file.md)).

Tied tensors share one scale and zero point, from their merged statistics. To keep layers in float or give
them other integers, use `--exclude`, `--override` and [`[[override]]`](recipe.md#override); what the
target cannot do is an error.

## The same sums on every processor

On x86 processors without VNNI (most AMD processors before Zen 4, Intel's before Ice Lake) the kernels of
ONNX Runtime and OpenVINO add two products of an unsigned activation and a signed weight in 16 bits, which
saturate: 255 * 127 + 255 * 127 = 64,770, beyond 32,767. Only two weights of one sign whose magnitudes add
up to more than 128 can do that. `ort-cpu`, `openvino` and `generic` (`weight.pair_sum = 128`) enlarge
each channel's scale by what its worst pair needs: the integer sums are the same with VNNI and without, on
ARM and in WebAssembly, at the same speed. That alone costs up to 1.3 dB of SQNR on 17 of 18 networks, and
2.3 dB on one; how Convs are rounded makes up for it on most of them
([results](../benchmarks/RESULTS.md#weights-for-every-processor);
[0025](decisions/0025-pairs-of-weights.md)).

`ptq verify` counts in any file what can saturate ([verify.md](verify.md#on-every-processor));
[processors.md](processors.md) says how the sums are compared on emulated processors. If all your
processors have VNNI, [`ort-cpu-vnni.toml`](../configs/README.md#targets) lets weights take the whole of 8
bits.

## Weights alone

With `--set activations.mode=float` ([weight_only.md](weight_only.md)), for kernels that read a scale for each
block:

{blocks}

## Ranges found at each run

With `--set activations.mode=dynamic` ([dynamic.md](dynamic.md)):

{dynamic}

## Write a target from scratch

Suppose an accelerator has int8 activations and weights with zero points of 0, an int32 bias, a table for
Sigmoid that gives uint8, a Relu within the operator before it, and multiplies with 7 bits of a weight.

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

[`configs/targets`](../configs/README.md#targets) has files to copy. A mistake is an error that names file
and key.

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
TABLES = ("activation", "weight", "bias", "op", "floats")
"""Top-level keys that are tables."""


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
    return f"### {title}\n\n{about}\n\n{table(['key', 'type, default', 'meaning'], rows)}\n"


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

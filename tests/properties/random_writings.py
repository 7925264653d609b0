"""The same random model, written as one exporter or another would: names, functions, inputs, dead nodes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

# Around a name.
ODD = ("/layers.0/{}", "{} (1)", "a b {}", "{}:0", "größe_{}", "<{}>", "'{}'", "{}_quantized", "{}.quantized")


def written(proto: onnx.ModelProto, random: np.random.Generator) -> onnx.ModelProto:
    """Return the model in another form that computes the same, and that the checker accepts."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for change, chance in CHANGES:
        if random.random() < chance:
            change(result, random)
    onnx.checker.check_model(result, full_check=True)
    return result


def fewer_outputs(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Leave out outputs, so that nodes are dead."""
    kept = [output for output in model.graph.output if random.random() < 0.5] or [model.graph.output[-1]]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def copied_output(model: onnx.ModelProto, _random: np.random.Generator) -> None:
    """Give one value twice."""
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Identity", [output.name], ["copied"], "copied"))
    info = onnx.ValueInfoProto()
    info.CopyFrom(output)
    info.name = "copied"
    model.graph.output.append(info)


def initializers_as_inputs(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """List constants as inputs, as files before version 4 of the format had to."""
    for tensor in model.graph.initializer:
        if random.random() < 0.8:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )


def local_function(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Move some nodes in a row into a function."""
    nodes = list(model.graph.node)
    start = int(random.integers(0, len(nodes)))
    inside = nodes[start : start + int(random.integers(1, 5))]
    if any(attribute.HasField("g") for node in inside for attribute in node.attribute):
        return  # What a nested graph reads is no input of its node.
    made = [name for node in inside for name in node.output if name]
    outside = [*nodes[:start], *nodes[start + len(inside) :]]
    read = {name for node in outside for name in _read(node)} | {info.name for info in model.graph.output}
    inputs = dict.fromkeys(name for node in inside for name in node.input if name and name not in made)
    outputs = [name for name in made if name in read]
    if not outputs:
        return
    opset = helper.make_opsetid("", next(item.version for item in model.opset_import if not item.domain))
    function = helper.make_function("local", "block", list(inputs), outputs, inside, [opset])
    call = helper.make_node("block", list(inputs), outputs, "block", domain="local")
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:start], call, *nodes[start + len(inside) :]])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)


def odd_names(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Rename every value of the outer graph and of nested ones."""
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        if name not in names:
            names[name] = str(random.choice(ODD)).format(name)
        return names[name]

    def rename(graph: onnx.GraphProto) -> None:
        for items in (graph.input, graph.output, graph.value_info, graph.initializer):
            for item in items:
                item.name = new(item.name)
        for node in graph.node:
            node.input[:] = [new(name) for name in node.input]
            node.output[:] = [new(name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename(attribute.g)

    rename(model.graph)


def node_names(model: onnx.ModelProto, random: np.random.Generator) -> None:
    """Take the names of nodes away, give all the same, or those of values that others make."""
    nodes = list(model.graph.node)
    form = int(random.integers(0, 3))
    outputs = [node.output[0] for node in nodes]
    for node, other in zip(nodes, reversed(outputs), strict=True):
        node.name = ["", "node", other][form]


def told_shapes(model: onnx.ModelProto, _random: np.random.Generator) -> None:
    """Write the shape of every value into the file."""
    inferred = onnx.shape_inference.infer_shapes(model)
    model.graph.value_info.extend(inferred.graph.value_info[len(model.graph.value_info) :])


# Each with how often it is made.
CHANGES: Sequence[tuple[Callable[[onnx.ModelProto, np.random.Generator], None], float]] = (
    (fewer_outputs, 0.4),
    (copied_output, 0.1),
    (local_function, 0.2),
    (initializers_as_inputs, 0.15),
    (odd_names, 0.3),
    (node_names, 0.4),
    (told_shapes, 0.3),
)

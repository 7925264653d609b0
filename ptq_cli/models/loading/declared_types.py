"""What a file says of types and shapes of computed values is left aside where it is checked.

ONNX Runtime computes what the nodes say, and only warns where a file declares something else of the result.
ONNX's checker refuses such a file; so it is shown the graph without these shapes.
"""

import onnx

from ptq_cli.models.converting.opset import DEFAULT_DOMAIN
from ptq_cli.models.loading.sparse import graphs_of


def clear_declared_shapes(proto: onnx.ModelProto) -> None:
    """Leave out the declared shapes of all computed values.

    Inputs keep theirs: ONNX Runtime takes no others. Types stay too, because a wrong one is an error.

    Args:
        proto: is changed in place.
    """
    infos = [info for function in proto.functions for info in function.value_info]
    for graph in graphs_of(proto.graph):
        constants = {tensor.name for tensor in graph.initializer}
        infos += [info for info in (*graph.output, *graph.value_info) if info.name not in constants]
    for info in infos:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


def give_outputs_types(proto: onnx.ModelProto) -> bool:
    """Give each output of the main graph without a type the one that is inferred; tell if there was any.

    Edge case:
        Where nothing can be inferred, the output stays without a type, which the checker refuses.

    Args:
        proto: is changed in place.
    """
    untyped = [output for output in proto.graph.output if _is_untyped(output)]
    if not untyped:
        return False
    for output in untyped:
        output.ClearField("type")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return False  # The checker says what is wrong.
    graph = inferred.graph
    infos = (*graph.value_info, *graph.output)
    found = {info.name: info.type for info in infos if info.HasField("type")}
    for output in untyped:
        if output.name in found:
            output.type.CopyFrom(found[output.name])
    return True


def _is_untyped(output: onnx.ValueInfoProto) -> bool:
    kind = output.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and not output.type.tensor_type.elem_type)


def shorten_default_domain(proto: onnx.ModelProto) -> bool:
    """Write ``ai.onnx`` as the empty domain in each node, which the checker wants; tell if there was any.

    Args:
        proto: is changed in place.
    """
    nodes = [node for graph in graphs_of(proto.graph) for node in graph.node]
    nodes += [node for function in proto.functions for node in function.node]
    found = [node for node in nodes if node.domain == DEFAULT_DOMAIN]
    for node in found:
        node.domain = ""
    return bool(found)

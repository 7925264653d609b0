"""Small float models from ONNX's text syntax, calibrated and quantized in memory."""

import zlib

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper, parser

from ptq_cli.core.arithmetic import QuantParameters, parameters_from_range, scale_from_amax
from ptq_cli.core.tensors import Array
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.sites import ActivationSite, Plan
from ptq_cli.plan.target.rules import Target
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.write.site_parameters import Parameters, decide_all
from ptq_cli.runtime.session import Kernels, Session
from ptq_cli.runtime.tapping.taps import tap
from tests.quantized import quantize_model

BATCH = 4


def build(graph: str, opset: int = 20, constants: dict[str, Array] | None = None) -> ir.Model:
    """A float tensor that is declared in ``<…>`` and that no node computes is a weight: seeded noise.

    A node without a name is named for its first output. Shapes are inferred, as in a prepared model.
    """
    text = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "other" : 1]> g {graph}'
    proto = parser.parse_model(text)
    computed = {name for node in proto.graph.node for name in node.output}
    declared = [info for info in proto.graph.value_info if info.name not in computed]
    for info in declared:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        array = (constants or {}).get(info.name, weight_noise(info.name, shape))
        proto.graph.initializer.append(numpy_helper.from_array(array, info.name))
        proto.graph.value_info.remove(info)
    name_nodes(proto.graph)
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    onnx.checker.check_model(proto)
    return ir.from_proto(proto)


def name_nodes(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.name = node.name or node.output[0]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                name_nodes(attribute.g)


def weight_noise(name: str, shape: list[int]) -> Array:
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    fan_in = max(int(np.prod(shape[1:] if len(shape) > 2 else shape[:1])), 1) if len(shape) > 1 else 4
    return (noise / np.sqrt(fan_in)).astype(np.float32)


def sample(model: ir.Model, seed: int = 0, batch: int = BATCH) -> dict[str, Array]:
    """A batch of inputs: noise, small indices, or zeros and ones for a mask."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for value in model.graph.inputs:
        shape = [size if isinstance(size, int) else batch for size in value.shape or ()]
        if value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            arrays[value.name or ""] = random.integers(0, 2, shape).astype(value.dtype.numpy())
        elif value.dtype == ir.DataType.BOOL:
            arrays[value.name or ""] = random.integers(0, 2, shape).astype(bool)
        else:
            arrays[value.name or ""] = random.standard_normal(shape).astype(value.dtype.numpy())
    return arrays


def ranges(model: ir.Model, plan: Plan, batches: list[dict[str, Array]]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each source, and of what is tied to it."""
    fed = {value.name for value in model.graph.inputs}
    computed = [name for name in plan.measured if name not in fed]
    session = Session(tap(model, computed), threads=1, optimize=False) if computed else None
    seen: dict[str, list[Array]] = {name: [] for name in plan.measured}
    for batch in batches:
        outputs = session.run(batch) if session else []
        for name, array in [*zip(computed, outputs, strict=True), *batch.items()]:
            if name in seen:
                seen[name].append(array)
    together = {source: [a for name in plan.members(source) for a in seen[name]] for source in plan.sources}
    return {
        name: (
            min(float(np.min(a, initial=0.0)) for a in arrays),
            max(float(np.max(a, initial=0.0)) for a in arrays),
        )
        for name, arrays in together.items()
    }


def decided(site: ActivationSite, low: float, high: float) -> QuantParameters:
    if not site.symmetric:
        return parameters_from_range(low, high, site.format)
    scale = scale_from_amax(max(-low, high, 0.0), site.format)
    return QuantParameters(np.asarray(scale), np.asarray(0, np.int64), site.format)


def quantized(model: ir.Model, plan: Plan | None = None, seeds: range = range(10)) -> ir.Model:
    plan = plan or make_plan(model, load_target("ort-cpu"))
    return quantize_model(model, plan, parameters(model, plan, [sample(model, seed) for seed in seeds]))


def parameters(model: ir.Model, plan: Plan, batches: list[dict[str, Array]]) -> Parameters:
    """From the smallest and the largest value of the batches."""
    found = ranges(model, plan, batches)

    def decide(site: ActivationSite) -> QuantParameters:
        return decided(site, *found[site.source])

    return decide_all(model, plan, decide)


def serialized(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


def run(
    model: ir.Model | bytes, inputs: dict[str, Array], *, optimize: bool = True, target: Target | None = None
) -> list[Array]:
    """Run a model; a file of a target as ptq does, on any processor."""
    content = model if isinstance(model, bytes) else serialized(model)
    return Session(content, threads=1, optimize=optimize, kernels=as_measured(target)).run(inputs)


def as_measured(target: Target | None) -> Kernels:
    """Return how files of a target are opened: this processor may saturate sums, a GPU and an HTP do not."""
    if target is None:
        return Kernels()
    return Kernels(exact_sums=target.name == "tensorrt", integers=not target.pairs_as_written)


def sqnr_db(reference: Array, other: Array) -> float:
    signal = float(np.sum(np.square(reference.astype(np.float64))))
    noise = float(np.sum(np.square(reference.astype(np.float64) - other.astype(np.float64))))
    return float("inf") if noise == 0.0 else 10.0 * np.log10(max(signal, 1e-30) / noise)

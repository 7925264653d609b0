"""What other ways to write activations could win at most: the float model with its tensors on other grids.

python -m benchmarks.candidates DIR                     print the table; DIR as for benchmarks.zoo
python -m benchmarks.candidates DIR --only a,b --write  these networks, and write it to benchmarks/RESULTS.md

Each network is calibrated, and exported without recovery. Then the float model runs with each activation on
the grid of that file, or on what a candidate would put there; weights stay float, and no file is written.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.each_network import table_line
from benchmarks.results_page import networks_parser, print_part
from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import feeds_of
from ptq_cli.core.arithmetic import FloatArray, QuantParameters, dequantize, parameters_from_range, quantize
from ptq_cli.core.formats import UINT8
from ptq_cli.core.tensors import Array
from ptq_cli.models.files.stored import read_model
from ptq_cli.models.fixed_inputs import reopened
from ptq_cli.placement.ranges import reader_bounds
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.read.padded_channels import without_padding
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.qdq.read.twin_graphs import TwinGraphs
from ptq_cli.qdq.staged_model import cut_stages
from ptq_cli.recover.output_noise import noise_of, sqnr_of
from ptq_cli.runtime.session import Session

FEW, CALIBRATED, IMAGE = 4, 24, 4
SUMS, GATES = ("Conv", "Gemm", "MatMul"), ("HardSigmoid", "Sigmoid")
Write = Callable[[Array], Array]
Writes = Mapping[str, Write]  # By tensor, what it is written as
Tensors = Mapping[str, Array]


class Network:
    """A float model whose tensors are written as a candidate says.

    Attributes:
        known, others: all tensors of samples to choose by, and of samples to judge by.
        grids: of the tensors that the exported file quantizes.
    """

    def __init__(self, folder: Path, samples: int) -> None:
        """Calibrate and export a network, and run its float model."""
        with tempfile.TemporaryDirectory() as run:
            count = ["--samples", str(CALIBRATED), "--set", "runtime.threads=1"]
            run_ptq(["calibrate", "model.onnx", "--data", "calib.npz", *count, "--run", run], folder)
            run_ptq(["export", "--run", run, "--recover", "none"], folder)
            self.model = read_model(Path(run) / "model.float.onnx").load()
            quantized = without_padding(read_model(Path(run) / "model_int8.onnx").load())
            twins = TwinGraphs(self.model, with_types(reopened(quantized, self.model)))
        self.grids = {name: pair.parameters for name, pair in twins.pairs.items()}
        self.outputs = [value.name or "" for value in self.model.graph.outputs if value.const_value is None]
        stages = cut_stages(TwinGraphs(self.model, self.model), (), set(self.grids))
        self._stages = [(stage.floating, Session(stage.floating.model, threads=1)) for stage in stages]
        self.known = [self.run(feed, {}) for feed in feeds_of(folder / "calib.npz", samples)]
        self.others = [self.run(feed, {}) for feed in feeds_of(folder / "eval.npz", samples)]
        self.inputs = [value.name or "" for value in self.model.graph.inputs]

    def run(self, given: Tensors, writes: Writes) -> Tensors:
        """Return all tensors of a sample, those in ``writes`` as they are written."""
        made = {name: writes[name](array) if name in writes else array for name, array in given.items()}
        for form, session in self._stages:
            feeds = {port.name: made[port.tensor] for port in form.inputs}
            for port, array in zip(form.outputs, session.run(feeds), strict=True):
                made[port.tensor] = writes[port.tensor](array) if port.tensor in writes else array
        return made

    def sqnr(self, writes: Writes, samples: Sequence[Tensors] | None = None) -> float:
        """Return the SQNR of the outputs, on the samples to judge by if no others are given."""
        chosen = self.others if samples is None else samples
        found = [self.run({name: item[name] for name in self.inputs}, writes) for item in chosen]
        outputs = ([[item[name] for name in self.outputs] for item in all_] for all_ in (chosen, found))
        return sqnr_of([noise_of(*both) for both in zip(*outputs, strict=True)])

    def nodes(self, name: str) -> tuple[str, list[str]]:
        """Return the operator that makes a tensor, and those that read it."""
        values = [value for node in self.model.graph for value in node.outputs if value.name == name]
        readers = [
            node.op_type
            for node in self.model.graph
            if any(value is not None and value.name == name for value in node.inputs)
        ]
        producer = values[0].producer() if values else None
        return producer.op_type if producer is not None else "", readers


def on_grid(grid: QuantParameters) -> Write:
    """Return what rounds to a grid; NaN is its lowest value, as in ONNX Runtime."""
    return lambda x: dequantize(quantize(np.where(np.isnan(x), -np.inf, x), grid), grid)


def covering(arrays: Sequence[Array]) -> Write:
    """Return what rounds to the grid that covers some arrays."""
    finite = [array[np.isfinite(array)] for array in arrays]
    low, high = (float(end(np.concatenate([each.ravel() for each in finite]))) for end in (np.min, np.max))
    return on_grid(parameters_from_range(min(low, 0.0), max(high, 0.0), UINT8))


def by_channel(x: Array, *, groups: bool) -> Array:
    """Return a tensor whose channels have grids of their own ranges, or one of two for groups of channels."""
    x, axes = np.nan_to_num(x), (0, *range(2, x.ndim))
    low, high = np.minimum(x.min(axes), 0.0), np.maximum(x.max(axes), 0.0)
    if groups:
        widths = np.sort(high - low)
        count = np.arange(1, len(widths) + 1)
        # As many quiet channels as leave the least noise, where a group has the steps of its loudest one.
        costs = count * widths**2 + (len(widths) - count) * widths[-1] ** 2
        quiet = high - low <= widths[np.argmin(costs)]
        for group in (quiet, ~quiet):
            low[group], high[group] = low[group].min(initial=0.0), high[group].max(initial=0.0)
    shape = (1, -1, *[1] * (x.ndim - 2))
    steps = (np.maximum(high - low, 1e-12) / 255.0).reshape(shape)
    least = np.round(low.reshape(shape) / steps)
    return np.asarray(np.clip(np.round(x / steps), least, least + 255.0) * steps, np.float32)


def shifted(network: Network, base: Writes) -> Writes:
    """Return the grids behind corrections of what each convolution has on average lost, by channel."""
    shifts: dict[str, list[FloatArray]] = {}
    made = [name for name in base if network.nodes(name)[0] == "Conv"]

    def corrected(name: str, wanted: Array) -> Write:
        def write(array: Array) -> Array:
            lost = array.astype(np.float32) - wanted.astype(np.float32)
            moved = np.mean(lost, axis=(0, *range(2, array.ndim)), keepdims=True)
            shifts.setdefault(name, []).append(moved)
            return base[name](array.astype(np.float32) - moved)

        return write

    def behind(write: Write, mean: FloatArray) -> Write:
        return lambda array: write(array.astype(np.float32) - mean)

    for sample in network.known:
        given = {name: sample[name] for name in network.inputs}
        network.run(given, {**base, **{name: corrected(name, sample[name]) for name in made}})
    means = {name: np.asarray(np.mean(found, axis=0), np.float32) for name, found in shifts.items()}
    return {**base, **{name: behind(base[name], mean) for name, mean in means.items()}}


def candidates(network: Network) -> Iterator[tuple[str, Writes]]:
    """Yield each candidate with what it writes."""
    base = {name: on_grid(grid) for name, grid in network.grids.items()}
    yield "as exported", base
    yield "flat readers", {**base, **ending_early(network)}
    yield "range of the sample", dict.fromkeys(base, lambda x: covering([x])(x))
    joins = [node for node in network.model.graph if node.op_type == "Concat"]
    parts = {value.name or "" for node in joins for value in node.inputs if value is not None} & set(base)
    apart = {name: covering([sample[name] for sample in network.known]) for name in parts}
    yield "Concat apart", without({**base, **apart}, {node.outputs[0].name or "" for node in joins})
    yield "means", shifted(network, base)
    images = [name for name in base if network.known[0][name].ndim == IMAGE]
    sums = [name for name in images if set(network.nodes(name)[1]) <= set(SUMS)]
    yield "two scales", {**base, **dict.fromkeys(sums, lambda x: by_channel(x, groups=True))}
    yield "scale by channel", {**base, **dict.fromkeys(images, lambda x: by_channel(x, groups=False))}
    yield "gates in float", without(base, {name for name in base if network.nodes(name)[0] in GATES})
    noise = {name: network.sqnr({name: write}, network.known[:1]) for name, write in base.items()}
    loud = sorted(noise, key=lambda name: (noise[name], name))
    for count in (1, 4, 16):
        yield f"{count} in float", without(base, set(loud[:count]))


def ending_early(network: Network) -> Writes:
    """Return the grids of ranges that end where no reader tells values apart."""
    plan = make_plan(network.model, load_target("ort-cpu"))
    sites = {name: site for name, site in plan.activations.items() if name in network.grids}
    grids = {site.source: network.grids[name] for name, site in sites.items()}
    found = reader_bounds(network.model, replace(plan, activations=sites), grids)
    bounds = {name: found[site.source] for name, site in sites.items() if site.source in found}
    return {name: on_grid(_within(network.grids[name], ends)) for name, ends in bounds.items()}


def without(writes: Writes, names: Collection[str]) -> Writes:
    """Return what is written but these tensors, which stay float."""
    return {name: write for name, write in writes.items() if name not in names}


def _within(grid: QuantParameters, bounds: tuple[float, float]) -> QuantParameters:
    low, high = (
        (end - int(grid.zero_point)) * float(grid.scale) for end in (grid.format.qmin, grid.format.qmax)
    )
    return parameters_from_range(max(low, bounds[0]), min(high, bounds[1]), UINT8)


def _lines(folders: Sequence[Path], samples: int) -> Iterator[str]:
    for index, folder in enumerate(folders):
        network = Network(folder, samples)
        found = {name: network.sqnr(writes) for name, writes in candidates(network)}
        if not index:
            yield from (table_line("network", *found), f"|{'---|' * (len(found) + 1)}")
        yield table_line(folder.name, *(f"{value:.1f}" for value in found.values()))


def main() -> None:
    """Parse the arguments, measure, and print or write the result."""
    arguments = networks_parser("Measure what other grids of activations could win.", FEW).parse_args()
    folders = find_networks(arguments.folder, arguments.only)
    print_part("candidates", _lines(folders, arguments.samples), write=arguments.write)


if __name__ == "__main__":
    main()

"""What a kernel takes, by its class: the table that decides which layers are slower in integers.

python -m benchmarks.kernel_costs DIR [DIR …]            print how far the table is off, by network
python -m benchmarks.kernel_costs DIR [DIR …] --write    fit it, and write placement/kernel_costs.toml

Each DIR is a folder of networks, as benchmarks/zoo.py describes it. Every network is profiled in float and
with everything in integers that can be, one sample at a time on one thread. The times of all kernels of a
class are then explained by a fixed time, and by their products, elements read and made, and pieces: least
squares of relative errors, no cost below 0. Profiles that are in ``--scratch`` are not measured again.
"""

import argparse
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.timing import run_ptq
from benchmarks.zoo import find_networks
from benchmarks.zoo_network import reason_of
from ptq_cli.core.documents import read_document
from ptq_cli.core.tensors import Array
from ptq_cli.placement.fastest_placement import (
    MachineProfile,
    Seam,
    circuit_of_profile,
    predicted,
    unit_sides,
)
from ptq_cli.placement.kernel_costs import TABLE, KernelTimes, KernelWork, known_costs, work_of
from ptq_cli.plan.multiply_accumulates import bind_shapes, multiply_accumulates
from ptq_cli.plan.planner import make_plan
from ptq_cli.plan.target.target_file import load_target

SHORTEST = 20.0  # microseconds below which a kernel counts as little as the clock is sure of it
PROFILED = ("--operators", "--set", "runtime.threads=1")
PRODUCTS = 1  # where they are among the terms
WORTH = 0.98  # of the error, what a further term has to leave at most
FEWEST = 3  # kernels of a class that it is fitted to


@dataclass(frozen=True)
class Measured:
    """A network with its profile, and what each node computes."""

    name: str
    model: ir.Model
    profile: MachineProfile
    work: dict[str, KernelWork]
    quantized: frozenset[str]
    sizes: dict[str, tuple[int, ...]]


def main() -> None:
    """Parse the arguments, profile, fit and write, or print how far off the table is."""
    parser = argparse.ArgumentParser(description="Fit the table of kernels' times.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--scratch", type=Path, default=Path("kernel_profiles"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(exist_ok=True)
    networks = [network for folder in arguments.folders for network in find_networks(folder, None)]
    if (measured := [*_measured(networks, arguments.scratch.resolve())]) and arguments.write:
        _write(measured)
    known_costs.cache_clear()
    for item in measured:
        print(*_line(item))


def _measured(networks: Sequence[Path], scratch: Path) -> Iterator[Measured]:
    target = load_target("ort-cpu")
    for network in networks:
        profile, prepared = scratch / f"{network.name}.json", scratch / f"{network.name}.onnx"
        given = [str(network / "model.onnx"), "--data", str(network / "calib.npz")]
        try:
            if not profile.exists():
                run_ptq(
                    ["bench", *given, "--operators", "-o", str(profile), "--set", "runtime.threads=1"],
                    scratch,
                )
            if not prepared.exists():
                run_ptq(["export", "--float", *given, "-o", str(prepared)], scratch)
        except subprocess.CalledProcessError as error:
            print(f"{network.name}: {reason_of(error)}", file=sys.stderr)
            continue
        model = ir.load(prepared)
        with np.load(network / "calib.npz") as arrays:
            names = [value.name or "" for value in model.graph.inputs]
            sizes = {name: (1, *arrays[name].shape[1:]) for name in names}
        layers = make_plan(model, target).layers
        quantized = frozenset(layer.name for layer in layers if layer.quantized)
        measured = read_document(MachineProfile, profile)
        shapes = bind_shapes(model, sizes).shapes
        work = work_of(model, shapes, multiply_accumulates(model, sizes).counts)
        yield Measured(network.name, model, measured, work, quantized, sizes)


def _seam(measured: Sequence[Measured]) -> Array:
    """Return what a tensor, and each of its elements, takes between integers and floats."""
    rows, times = [], []
    for item in measured:
        plan = make_plan(item.model, load_target("ort-cpu"))
        circuit = circuit_of_profile(item.model, plan, item.profile)
        sides = unit_sides(circuit, plan)
        alone = predicted(circuit, Seam(0.0, 0.0), sides)
        rows.append([predicted(circuit, seam, sides) - alone for seam in (Seam(1.0, 0.0), Seam(0.0, 1.0))])
        times.append(item.profile.integer - alone)
    terms, weight = np.array(rows), 1.0 / np.array([item.profile.integer for item in measured])
    found = np.linalg.lstsq(terms * weight[:, None], np.array(times) * weight, rcond=None)[0]
    made: Array = np.maximum(found, 0.0)
    return made


def _write(measured: Sequence[Measured]) -> None:
    fixed, element = _seam(measured)
    head = TABLE.read_text("utf-8").partition("[floating]")[0].rstrip()
    lines = [re.sub("seam = .*", f"seam = [{fixed:.3g}, {element:.3g}]", head), ""]
    for form in ("floating", "integer"):
        lines += [
            f"[{form}]",
            *(_entry(kind, costs) for kind, costs in sorted(_fitted(measured, form).items())),
            "",
        ]
    TABLE.write_text("\n".join(lines), "utf-8")


def _entry(kind: str, costs: Array) -> str:
    return f'"{kind}" = [{", ".join(repr(float(f"{abs(cost):.3g}")) for cost in costs)}]'


def _fitted(measured: Sequence[Measured], form: str) -> dict[str, Array]:
    times: dict[str, list[tuple[KernelWork, float]]] = defaultdict(list)
    for item in measured:
        for name, work in item.work.items():
            found = item.profile.nodes.get(name)
            if found is not None and (form == "floating" or name in item.quantized):
                times[work.kind].append((work, getattr(found, form)))
    return {kind: _fit(rows) for kind, rows in times.items() if len(rows) >= FEWEST}


def _fit(rows: Sequence[tuple[KernelWork, float]]) -> Array:
    """Return the costs that explain times best, none below 0: of all sets of terms the best that has none."""
    terms = np.array([work.terms for work, _ in rows])
    times = np.array([time for _, time in rows])
    weight = 1.0 / (times + SHORTEST)
    multiplies = bool(terms[:, PRODUCTS].any())
    best, least = np.zeros(terms.shape[1]), np.inf
    for count in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(range(terms.shape[1]), count):
            if multiplies and PRODUCTS not in chosen:
                continue
            matrix = terms[:, chosen] * weight[:, None]
            scale = np.maximum(np.abs(matrix).max(0), 1e-30)
            solved = np.linalg.lstsq(matrix / scale, times * weight, rcond=None)[0] / scale
            error = float(((matrix @ solved - times * weight) ** 2).sum())
            if (solved >= 0.0).all() and error < least * WORTH:
                least, best = error, np.zeros(terms.shape[1])
                best[list(chosen)] = solved
    return best


def _line(item: Measured) -> Iterator[str]:
    """Yield the speed over float that was measured, and what the table says of each kind of processor."""
    target = load_target("ort-cpu")
    plan = make_plan(item.model, target)
    table = KernelTimes(item.model, plan, target, item.sizes)
    yield f"{item.name:24s} {item.profile.floating / item.profile.integer:.2f}; by the table"
    yield ", ".join(f"{name} {speed:.2f}" for name, speed in table.speeds(plan).items())
    yield f"(float {table.mean.floating / item.profile.floating:.2f} of what was measured);"
    yield f"{len(table.in_float())} of {len(item.quantized)} layers in float"


if __name__ == "__main__":
    main()

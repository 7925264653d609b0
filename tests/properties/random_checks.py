"""One random file through the whole pipeline for one target, with everything that must hold.

``python -m tests.properties.random_checks SEED TARGET`` does it again, and says what was found."""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

import ptq_cli
from ptq_cli.core.errors import NothingToQuantizeError, PtqError, RuntimeFailedError
from ptq_cli.core.tensors import Array
from ptq_cli.evaluation.verification import CLEAR_DB
from ptq_cli.plan.target.target_file import load_target
from ptq_cli.qdq.proof.kernels_apart import kernels_apart
from ptq_cli.qdq.read.quantized_file import with_types
from ptq_cli.runtime.engine_registry import engine_alone, measuring_engine
from tests.properties.noise import noise_errors, rms
from tests.properties.random_graphs import BATCH, random_model
from tests.properties.random_steps import STEPS
from tests.properties.random_writings import written
from tests.properties.reference_judge import judged

AS_PREPARED = 1e-4  # Of the largest value: what preparation, and a runtime in floats, may move an output by
SLACK = 3.0  # Of four draws the noise of the worst is taken; right files reach 0.9 of that, OpenVINO's 2
KERNEL_STEPS = 1  # Between a kernel and its operators as written, on the same integers
BATCHES = 4


@dataclass
class Outcome:
    """How one file fared: what must not be, and what is only said."""

    findings: list[str] = field(default_factory=list)
    nothing: bool = False
    ratios: dict[str, float] = field(default_factory=dict)
    sqnr: dict[str, float] = field(default_factory=dict)


def random_file(seed: int) -> onnx.ModelProto:
    """Return the model of a seed, in the form of the seed."""
    count = int(np.random.default_rng(seed).integers(1, 26))
    return written(random_model(seed, count, STEPS), np.random.default_rng([seed, 1]))


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Return a batch of what a model has to be given."""
    random = np.random.default_rng([seed, 2])
    stored = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, Array] = {}
    for info in model.graph.input:
        if info.name in stored:
            continue
        shape = [size.dim_value or BATCH for size in info.type.tensor_type.shape.dim]
        is_number = info.type.tensor_type.elem_type == TensorProto.INT64
        found[info.name] = (
            random.integers(0, 5, shape) if is_number else random.standard_normal(shape).astype(np.float32)
        )
    return found


def check(seed: int, target: str, folder: Path) -> Outcome:
    """Take the file of a seed through, and return what does not hold."""
    proto, run, outcome = random_file(seed), folder / "run", Outcome()
    onnx.save(proto, folder / "model.onnx")
    batches = [random_inputs(proto, seed * BATCHES + index) for index in range(BATCHES)]
    data = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    np.savez(folder / "data.npz", **data)
    settings = {"input_shape": {"batch": [BATCH]}} if load_target(target).static_shapes else {}
    settings |= {"target": target, "threads": 1, "batch_size": BATCH, "latency": False, "evaluate": False}
    is_taken = _as_run(proto, target, batches[0]) is not None
    try:
        ptq_cli.quantize(folder / "model.onnx", data=folder / "data.npz", run=run, **settings)
        if is_taken:
            _verify(run, batches[0], target, outcome)
    except NothingToQuantizeError:
        outcome.nothing = True
        return outcome
    except PtqError as error:
        if is_taken or not isinstance(error, RuntimeFailedError):
            outcome.findings.append(f"refused: {error.message}")
    if (run / "model_int8.onnx").is_file():
        judge(proto, run, batches[0], target, outcome)
    return outcome


def _as_run(model: onnx.ModelProto, target: str, inputs: Mapping[str, Array]) -> list[Sequence[Array]] | None:
    """Return what a target's runtime makes of a file in each of its forms; None if it does not take it."""
    try:
        engine = measuring_engine(load_target(target))
        return [form.run(inputs) for form in engine.open_forms(model.SerializeToString(), threads=1)]
    except RuntimeFailedError:
        return None


def _verify(run: Path, inputs: Mapping[str, Array], target: str, outcome: Outcome) -> None:
    found = ptq_cli.verify(run=run, threads=1)
    compared = found.kernel_comparison
    if found.verdict != "pass" and any(_floats_right(onnx.load(run / "model.float.onnx"), inputs, target)):
        outcome.findings.append(f"verify fails: {found.faults} {compared} {found.saturates_here}")
    # OpenVINO takes no part whose inputs have no known rank; there the outputs decide, which verify says.
    if compared and compared.fault and target != "openvino":
        outcome.findings.append(f"kernels not compared: {compared.fault}")


def judge(
    proto: onnx.ModelProto, run: Path, inputs: Mapping[str, Array], target: str, outcome: Outcome
) -> None:
    """Hold a float model and what was made of it to ONNX's reference, and note what does not hold."""
    prepared, quantized = onnx.load(run / "model.float.onnx"), onnx.load(run / "model_int8.onnx")
    onnx.checker.check_model(quantized, full_check=True)
    values = judged(quantized, inputs)
    wanted, floats = _outputs(proto, judged(proto, inputs)), _outputs(prepared, judged(prepared, inputs))
    found = _outputs(quantized, values)
    for (name, one), other in zip(wanted.items(), floats.values(), strict=True):
        if not _near(one, other):
            outcome.findings.append(f"prepared: output {name} differs by {np.max(np.abs(one - other))}")
    noise = list(noise_errors(quantized, values, inputs).values())
    outcome.findings += list(_explained("file", wanted, found, noise, outcome))
    outcome.sqnr = {name: sqnr(one, found[name]) for name, one in zip(found, wanted.values(), strict=True)}
    is_right = _floats_right(prepared, inputs, target)
    if not any(is_right):
        return
    as_run = _as_run(quantized, target, inputs)
    if as_run is None:
        outcome.findings.append("the runtime takes the float model, and not the quantized one")
        return
    for index, arrays in enumerate(as_run):
        if is_right[index]:
            computed = dict(zip(found, arrays, strict=True))
            what = f"as it runs ({index})" if index else "as it runs"
            outcome.findings += list(_explained(what, found, computed, noise, outcome))
    together = zip(found.values(), as_run[0], strict=True)
    # OpenVINO makes other kernels of a part of a model than of all of it.
    if target != "openvino" or not all(sqnr(one, other) >= CLEAR_DB for one, other in together):
        outcome.findings += list(_wrong_kernels(quantized, inputs, target))


def _floats_right(prepared: onnx.ModelProto, inputs: Mapping[str, Array], target: str) -> list[bool]:
    """Tell for each form of the float model whether the runtime is right: it may not even take it."""
    floats = _outputs(prepared, judged(prepared, inputs))
    return [all(map(_near, floats.values(), own)) for own in _as_run(prepared, target, inputs) or ()]


def _outputs(model: onnx.ModelProto, values: Mapping[str, Array]) -> dict[str, Array]:
    return {output.name: np.asarray(values[output.name]) for output in model.graph.output}


def _near(one: Array, other: Array) -> bool:
    largest = np.max(np.abs(one[np.isfinite(one)]), initial=1e-3)
    return one.shape == other.shape and np.allclose(one, other, 0, AS_PREPARED * largest, equal_nan=True)


def _explained(
    what: str, wanted: Mapping[str, Array], found: Mapping[str, Array], noise: list[float], outcome: Outcome
) -> Iterator[str]:
    """Yield outputs that are farther apart than noise in the place of rounding explains."""
    for name, one, other, error in zip(wanted, wanted.values(), found.values(), noise, strict=True):
        if one.shape != other.shape:
            yield f"{what}: output {name} has the shape {other.shape}, not {one.shape}"
            continue
        if np.isfinite(one).all() and not np.isfinite(other).all():
            yield f"{what}: output {name} is not finite"
        tiny = 1e-5 * max(float(np.max(np.abs(one[np.isfinite(one)]), initial=0.0)), 1e-3)
        ratio = rms(one, other) / (error + tiny)
        outcome.ratios[f"{what} {name}"] = ratio
        if not ratio <= SLACK:
            yield f"{what}: output {name} is {ratio:.3g} times as far as noise explains"


def _wrong_kernels(quantized: onnx.ModelProto, inputs: Mapping[str, Array], target: str) -> Iterator[str]:
    """Yield integers that a kernel makes of others by more than a step from what the reference makes."""
    engine = engine_alone(load_target(target))
    if engine is None:
        return
    cut = kernels_apart(with_types(ir.from_proto(quantized)))
    reference = judged(onnx.load_from_string(cut.whole.content), inputs)
    feeds = {**inputs, **{name: np.asarray(reference[tensor]) for tensor, name in cut.inputs.items()}}
    try:
        computed = engine.open(cut.apart, threads=1).run(feeds)
    except RuntimeFailedError:  # Ranks that are not known, as above.
        if target != "openvino":
            raise
        return
    for unit, integers in zip(cut.units, computed, strict=True):
        if unit.step:
            apart = np.abs(np.asarray(reference[unit.tensor]).astype(np.int64) - integers.astype(np.int64))
            if np.max(apart, initial=0) > max(KERNEL_STEPS * unit.step, unit.rounding):
                yield f"kernel: {unit.op} '{unit.node}' is {np.max(apart)} steps off"


def sqnr(one: Array, other: Array) -> float:
    """Return the signal-to-quantization-noise ratio in decibels."""
    signal, noise = rms(one, np.zeros_like(one)), rms(one, other)
    return float(np.inf if noise == 0 else 20 * np.log10(max(signal, 1e-30) / noise))


def main() -> int:
    """Check one seed for one target."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = check(int(sys.argv[1]), sys.argv[2], Path(folder))
    print(*outcome.findings or ["nothing found"], sep="\n")
    return bool(outcome.findings)


if __name__ == "__main__":
    sys.exit(main())

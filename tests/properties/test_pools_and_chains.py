"""Poolings and chains of activation functions: what the runtime computes is what the file says.

The judge is the float model: what is lost as the target's runtime runs the file must not be more than what is
lost as it is written, which ONNX Runtime without optimizations computes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import ptq_cli
from ptq_cli.core.errors import NothingToQuantizeError, WrongKernelError
from ptq_cli.core.tensors import Array
from ptq_cli.plan.target.target_file import load_target, target_names
from ptq_cli.runtime.engine_registry import measuring_engine
from tests.each_case import each_case
from tests.properties.random_pools import random_graph
from tests.unit.plan.graphs import build, run, sample, serialized, sqnr_db

# OpenVINO rounds means to the integers of their input even if they are read as floats.
SLACK_DB, CLEAR_DB = 6.0, 30.0
SAMPLES = 8
PARTS, SEEDS = 4, 25
HEAD = "(float[N,4,8,8] x) => (float[] y) <float[4,4,3,3] w, float[4,4,1,1] u>"
POOL = (
    "c = Conv<pads=[1,1,1,1]>(x, w) a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], {}>(c) y = Conv(a, u)"
)
KNOWN = {
    "zeros that count, of shifted integers": POOL.format("count_include_pad=1"),
    "also with ceil_mode": POOL.format("strides=[2,2], ceil_mode=1, count_include_pad=1"),
    "along one axis": POOL.replace("pads=[1,1,1,1], {}", "pads=[0,1,0,0], {}").format("count_include_pad=1"),
    "an activation behind a float maximum": """c = Conv<pads=[1,1,1,1]>(x, w) s = Selu(c)
        m = GlobalMaxPool(s) a = LeakyRelu<alpha=0.1>(m) y = Conv(a, u)""",
    "a mean in float of integers that are read besides": """c = Conv<pads=[1,1,1,1]>(x, w)
        a = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(c)
        o = Conv(c, u) y = Add(a, o)""",
    "both inputs of a Sub from one Conv without a bias": """c = Conv<pads=[1,1,1,1]>(x, w)
        e = Exp(c) y = Sub(c, e)""",
    "a Relu behind a HardSwish": """c = Conv<pads=[1,1,1,1]>(x, w)
        s = HardSwish(c) r = Relu(s) y = Conv(r, u)""",
}


def losses(graph: str, target: str, folder: Path) -> tuple[float, float] | None:
    """SQNR against the float model: of the file as written, and as it runs; None if nothing is quantized."""
    model = build(graph)
    (folder / "model.onnx").write_bytes(serialized(model))
    np.savez(folder / "data.npz", x=np.concatenate([sample(model, seed)["x"] for seed in range(SAMPLES)]))
    words = {"target": target, "data": str(folder / "data.npz"), "recover": ["none"], "threads": 1}
    try:
        ptq_cli.quantize(
            folder / "model.onnx", run=folder / "run", latency=False, prefer="size", batch_size=1, **words
        )
    except NothingToQuantizeError:
        return None
    content = (folder / "run" / "model_int8.onnx").read_bytes()
    inputs = sample(model, seed=99)

    def sqnr(outputs: list[Array]) -> float:
        return float(sqnr_db(run(model, inputs, optimize=False)[0], outputs[0]))

    forms = measuring_engine(load_target(target)).open_forms(content, threads=1)
    return sqnr(run(content, inputs, optimize=False)), min(sqnr(form.run(inputs)) for form in forms)


def check(graph: str, target: str, folder: Path) -> None:
    if target == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("needs openvino")
    found = losses(graph, target, folder)
    if found is not None:
        written, runs = found
        assert runs >= min(written - SLACK_DB, CLEAR_DB), graph


@each_case("target", ("ort-cpu", "openvino"))
@each_case("name", KNOWN)
def test_what_was_wrong_is_right(tmp_path: Path, name: str, target: str):
    check(f"{HEAD} {{ {KNOWN[name]} }}", target, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", target_names())
def test_a_runtime_computes_what_the_file_says(tmp_path: Path, target: str, part: int):
    failed = []
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            check(random_graph(seed), target, folder)
        except (
            WrongKernelError
        ) as error:  # OpenVINO has windows of a MaxPool where ONNX has none, and that is said.
            if target != "openvino" or "another shape" not in error.message:
                failed.append(f"{seed}: {error.message}")
        except Exception as error:  # noqa: BLE001 - all are listed
            failed.append(f"{seed}: {error!r}")
    assert failed == []

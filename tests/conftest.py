"""What all tests share: folders, exports and shorter measurements, made once a run."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from tests import day
from tests.made_once import shared_base

SAMPLES = Path(__file__).parents[1] / "sample_models"
# Seconds.
SHORT_LATENCY = {
    "ptq_cli.evaluation.latency._SECONDS": 0.1,
    "ptq_cli.evaluation.latency.LIMITED_SECONDS": 0.5,
    "ptq_cli.latency.served_latency.PROFILED_SECONDS": 0.1,
}


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust is remembered in a folder of theirs, and never in the user's own configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTQ_CONFIG_DIR", str(tmp_path_factory.mktemp("configuration")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_and_one_table_of_operators() -> Iterator[None]:
    """PyTorch's exporter makes its table of operators for each model, which takes longer than a small model.

    Nothing that ptq calls changes the table, so the models of all tests share one.
    """
    if "torch" not in sys.modules:
        yield
        return
    import torch
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    # Two spinning OpenMP threads beside another busy process are slower than one by far.
    torch.set_num_threads(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_export_of_each_sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Many tests start with the checkpoint of a sample model, and PyTorch takes seconds to export it.

    Its export is kept for all tests of this run, those in other workers included; so is that of the project
    in which the examples of the commands run. Models of tests' own are exported each time.
    """
    if "torch" not in sys.modules:
        yield
        return
    from ptq_cli.models.loading.torch_sources import ModuleSource
    from tools.pages.project_folder import CHECKPOINTS

    folder = shared_base(tmp_path_factory)
    samples = {sha256(path.read_bytes()).hexdigest() for path in SAMPLES.glob("*/model.pt")}
    export = ModuleSource._exported

    def kept(source: ModuleSource, arguments: dict[str, Any], axes: Any) -> ir.Model:
        if source.file.sha256 not in samples | CHECKPOINTS:
            return export(source, arguments, axes)
        inputs = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in arguments.items()}
        asked = repr((source.file.sha256, inputs, axes, sorted(source.values.items())))
        path = folder / f"{sha256(asked.encode()).hexdigest()}.onnx"
        if not path.is_file():
            part = path.with_suffix(f".{os.getpid()}")
            ir.save(export(source, arguments, axes), part)
            part.replace(path)
        return ir.load(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModuleSource, "_exported", kept)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_latency() -> Iterator[None]:
    """Most tests evaluate for something else than the latency, and none depends on how exact that is."""
    if "onnxruntime" not in sys.modules:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in SHORT_LATENCY.items():
            patch.setattr(name, seconds)
        yield


SMALL = 250_000  # bytes of a float model


@pytest.fixture(scope="session", autouse=True)
def small_networks_in_integers() -> Iterator[None]:
    """Integers pay in none of the networks of a few layers, and tests of these are about integers.

    What is decided where nobody says what is preferred is tested in ``tests/e2e/test_preference.py``.
    """
    if "onnxruntime" not in sys.modules:
        yield
        return
    from ptq_cli.pipeline import decide_model, run_export
    from ptq_cli.pipeline.trial_models import decides_placement

    def decides(resolved: Any, float_model: Any) -> bool:
        return float_model.size > SMALL and decides_placement(resolved, float_model)

    with pytest.MonkeyPatch.context() as patch:
        for module in (decide_model, run_export):
            patch.setattr(module, "decides_placement", decides)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Let the garbage collector rest while modules are imported: nothing of them is garbage."""
    day.configure(config)
    gc.disable()


def pytest_collection_finish() -> None:
    """Start the garbage collector again, for what the tests make: some of them measure memory."""
    gc.freeze()
    gc.enable()

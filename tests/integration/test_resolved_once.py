"""What a command's settings name is read and parsed once, and a model is planned once for a target."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ptq_cli

API = ("proofs", "stages", "views")
PARSERS = {
    "load_target": "ptq_cli",
    "parse_device": "ptq_cli",
    # What is checked beforehand, and what sessions beside the main one take, is no setting of the command.
    "parse_size": "ptq_cli.setup",
    "usable_cores": "ptq_cli.setup",
}
DATA, EVALUATION_DATA = {"data": "calib.npz"}, {"eval_data": "calib.npz"}
PLANNING: dict[str, dict[str, Any]] = {
    "calibrate": {"model": "model.onnx", **DATA, "run": "new"},
    "export": {},
    "evaluate": EVALUATION_DATA,
    "quantize": {"model": "model.onnx", **DATA, **EVALUATION_DATA, "evaluate": True},
    "inspect": {"model": "model.onnx"},
    "show_calibration": {},
    "analyze": EVALUATION_DATA,
}
OTHERS: dict[str, dict[str, Any]] = {
    "verify": {},
    "bench": {"runs": 9, "threads": 1},
    "prepare": {"model": "model.onnx", "output": "prepared.onnx"},
}


@pytest.fixture
def counted(finished: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function was called that reads what settings name, or plans a model."""
    (folder / "ptq.toml").write_text('[runtime]\nmax_memory = "64GiB"\n')
    for module in API:
        importlib.import_module(f"ptq_cli.api.{module}")
    calls: Counter[str] = Counter()
    for name, package in {**PARSERS, "make_plan": "ptq_cli"}.items():
        for module in [found for key, found in sys.modules.items() if key.startswith(f"{package}.")]:
            if name in vars(module):
                monkeypatch.setattr(module, name, _counting(vars(module)[name], name, calls))
    return calls


def _counting(function: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*args, **options)

    return call


@pytest.mark.parametrize("command", [*PLANNING, *OTHERS])
def test_a_command_reads_its_settings_once_and_plans_its_model_once(command, counted):
    getattr(ptq_cli, command)(**{**PLANNING, **OTHERS}[command])
    once = [*PARSERS, "make_plan"] if command in PLANNING else PARSERS
    assert counted == dict.fromkeys(once, 1)


def test_a_model_for_another_target_is_planned_by_the_rules_of_that_one(counted: Counter[str]) -> None:
    ptq_cli.export(target="tensorrt")
    counted.clear()
    assert ptq_cli.evaluate(eval_data="calib.npz", target="ort-cpu").report.target == "tensorrt"
    assert counted["make_plan"] == 1

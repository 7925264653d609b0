"""Every amax method from one saved calibration, other ones for some tensors, and notes where none chose."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper


def scales(model: Path) -> dict[str, np.ndarray]:
    """The scales of a quantized model by name, but for the biases', which follow from the others."""
    names = {item.name: item for item in onnx.load(model).graph.initializer if item.name.endswith("scale")}
    return {name: numpy_helper.to_array(item) for name, item in names.items() if ".bias" not in name}


def exported(ptq: Any, flags: str) -> dict[str, np.ndarray]:
    outcome = ptq(f"export {flags}")
    assert outcome.status == 0, outcome
    return scales(Path("ptq-run/model_int8.onnx"))


def changed(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> set[str]:
    assert set(one) == set(other)
    return {name for name in one if not np.array_equal(one[name], other[name])}


@pytest.mark.parametrize("method", ["percentile", "mse"])
def test_weights_are_decided_apart_from_activations(folder: Path, ptq: Any, method: str) -> None:
    by_max = exported(ptq, "--amax max")
    found = exported(ptq, f"--amax max --set amax.weight_method={method} --set amax.percentile=50")

    assert changed(by_max, found) == {"conv.weight.scale", "fc.weight.scale"}
    assert all((found[name] <= by_max[name] * (1 + 1e-6)).all() for name in found)
    outcome = ptq("evaluate --eval-data eval.npz")
    assert outcome.status == 0
    assert f"max, weights by {method}" in (folder / "ptq-run/report.md").read_text()


def test_override_decides_the_tensors_it_matches(folder: Path, ptq: Any) -> None:
    plain = exported(ptq, "--amax max")
    (folder / "r.toml").write_text(
        (folder / "ptq-run/recipe.toml").read_text().replace("../", "")
        + '\n[[override]]\nmatch = "re*"\namax = "percentile 90"\n'
        + '\n[[override]]\nmatch = "fc.weight"\nweight_amax = "mse"\n'
    )

    outcome = ptq("export --amax max --recipe r.toml --json")

    assert outcome.status == 0, outcome
    document = json.loads(outcome.out)
    assert document["overridden"] == ["relu", "fc.weight"]
    found = scales(folder / "ptq-run/model_int8.onnx")
    assert changed(plain, found) == {"relu.scale", "fc.weight.scale"}
    assert "ranges by max, 2 tensors by overrides" in ptq("export --amax max --recipe r.toml").out
    assert ptq("evaluate --eval-data eval.npz --recipe r.toml").status == 0
    assert "overrides = 2" in (folder / "ptq-run/report.md").read_text()

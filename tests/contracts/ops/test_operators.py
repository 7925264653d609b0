"""Every operator through all of ptq: what becomes integer, what stays float and why, and how exact it is."""

from pathlib import Path

import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from tests.contracts.ops.measure import Measured, measure
from tests.contracts.ops.table import OPERATORS

QUANTIZED = [name for name, case in OPERATORS.items() if not case.refused]
REFUSED = [name for name, case in OPERATORS.items() if case.refused]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory):
    found: dict[str, Measured] = {}

    def get(name: str) -> Measured:
        if name not in found:
            found[name] = measure(OPERATORS[name], tmp_path_factory.mktemp("op"))
        return found[name]

    return get


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_right_nodes_are_integer(measured, name: str):
    layers = measured(name).layers
    assert " ".join(layer.name for layer in layers if layer.quantized) == OPERATORS[name].integer


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_other_node_has_its_reason(measured, name: str):
    wanted = OPERATORS[name].floats
    found = {layer.name: layer.reason for layer in measured(name).layers if not layer.quantized}
    assert list(found) == list(wanted)
    assert [key for key in wanted if wanted[key] not in found[key]] == [], found


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_promised_integer_kernels_run(measured, name: str):
    assert measured(name).kernels == OPERATORS[name].kernels


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "as_written"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_the_outputs_are_close(measured, name: str, optimize: bool):
    assert min(measured(name).sqnr[optimize]) >= OPERATORS[name].least_db


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_but_the_reason_is_said_where_nothing_can_be_quantized(tmp_path: Path, name: str):
    with pytest.raises(NothingToQuantizeError) as caught:
        measure(OPERATORS[name], tmp_path)
    assert OPERATORS[name].refused in caught.value.message
    assert not (tmp_path / "run").exists()

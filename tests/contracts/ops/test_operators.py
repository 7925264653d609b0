"""Every operator through all of ptq: what becomes integer, what stays float and why, and how exact it is."""

from pathlib import Path

import pytest

from ptq_cli.core.errors import NothingToQuantizeError
from tests.contracts.ops.measure import measure
from tests.contracts.ops.table import OPERATORS
from tests.day import fewer
from tests.each_case import each_case

QUANTIZED = [name for name, case in OPERATORS.items() if not case.refused]
REFUSED = [name for name, case in OPERATORS.items() if case.refused]


@each_case("name", fewer(QUANTIZED, 3))
def test_it_becomes_what_the_table_says(tmp_path: Path, name: str):
    wanted, found = OPERATORS[name], measure(OPERATORS[name], tmp_path)
    assert " ".join(layer.name for layer in found.layers if layer.quantized) == wanted.integer
    reasons = {layer.name: layer.reason for layer in found.layers if not layer.quantized}
    assert list(reasons) == list(wanted.floats), "every other node has its reason"
    assert [key for key in reasons if wanted.floats[key] not in reasons[key]] == [], reasons
    assert found.kernels == wanted.kernels, "the promised integer kernels run"
    for optimize in (True, False):
        assert min(found.sqnr[optimize]) >= wanted.least_db, f"the outputs are close, {optimize=}"


@each_case("name", REFUSED)
def test_nothing_but_the_reason_is_said_where_nothing_can_be_quantized(tmp_path: Path, name: str):
    with pytest.raises(NothingToQuantizeError) as caught:
        measure(OPERATORS[name], tmp_path)
    assert OPERATORS[name].refused in caught.value.message
    assert not (tmp_path / "run").exists()

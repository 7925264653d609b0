"""``ptq repair`` on a file that can saturate: what it says, what it writes, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

from tests.e2e.conftest import Ptq, Refuse, snapshot

UNSAFE = "2 of 2 layers can saturate on x86 without VNNI (conv"


class Reader(CalibrationDataReader):  # type: ignore[misc] - the base has no types
    """The samples of a file, one at a time."""

    def __init__(self, file: str) -> None:
        with np.load(file) as arrays:
            self._rows = iter([{"x": row[None]} for row in arrays["x"]])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next one."""
        return next(self._rows, None)


@pytest.fixture(autouse=True)
def theirs(folder: Path) -> None:
    """A file of ONNX Runtime's script."""
    quantize_static(
        "model.onnx", "theirs.onnx", Reader("calib.npz"), per_channel=True, activation_type=QuantType.QUInt8
    )


def test_check_is_a_gate_that_writes_nothing(ptq: Ptq, folder: Path) -> None:
    before = snapshot(folder)
    outcome = ptq("repair theirs.onnx --check")
    assert (outcome.status, f"before: {UNSAFE}" in outcome.out) == (3, True)
    assert outcome.out.splitlines()[-1] == "needs repair"
    assert "hint: ptq repair theirs.onnx writes a file that is exact" in outcome.err
    assert snapshot(folder) == before
    assert ptq("repair ptq-run/model_int8.onnx --check").status == 0


def test_a_repaired_file_passes_and_tells_what_it_cost(ptq: Ptq) -> None:
    outcome = ptq("repair theirs.onnx")
    assert outcome.status == 0, outcome
    assert f"before: {UNSAFE}" in outcome.out and "after:  0 of 2 layers can saturate" in outcome.out
    assert "wrote theirs.repaired.onnx" in outcome.out
    assert ptq("verify theirs.repaired.onnx --require-portable").status == 0
    again = ptq("repair theirs.repaired.onnx -o copy.onnx")
    assert "wrote copy.onnx, a copy: no layer can saturate" in again.out
    assert Path("copy.onnx").read_bytes() == Path("theirs.repaired.onnx").read_bytes()


def test_float_weights_and_data_recover_more(ptq: Ptq) -> None:
    values = json.loads(ptq("repair theirs.onnx --float model.onnx --data calib.npz --json").out)
    found = values["comparison"]
    assert {item["rounded_from"] for item in values["changed"]} == {"float model"}
    assert (found["reference"], found["samples"]) == ("float model", 12)
    assert found["after_db"] > found["exact_db"] - 3
    plain = json.loads(ptq("repair theirs.onnx --data calib.npz --json -o plain.onnx").out)["comparison"]
    assert (plain["reference"], plain["exact_db"]) == ("file with exact sums", None)
    assert plain["after_db"] > 20


def test_bad_input_is_refused_and_changes_nothing(refuse: Refuse) -> None:
    refuse("repair model.onnx", "PTQ-MODEL-008", "multiplies integers of 8 bits")
    refuse("repair missing.onnx", "PTQ-FILE-001", "does not exist")
    refuse("repair theirs.onnx -o theirs.onnx", "PTQ-USAGE-001", "would overwrite the model that it repairs")
    refuse("repair theirs.onnx --float ptq-run/model_int8.onnx", "PTQ-REPAIR-002", "none of the weights")

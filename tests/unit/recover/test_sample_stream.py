"""Arrays that wait in memory or in a file.

Tensors between the stages of a model.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ptq_cli.core.errors import OutputFileError
from ptq_cli.core.tensors import Array
from ptq_cli.qdq.staged_model import Stage
from ptq_cli.recover import sample_stream
from ptq_cli.recover.sample_stream import SpillStore, last_readers


def test_what_does_not_fit_is_the_same_from_a_file_that_leaves_nothing(tmp_path: Path) -> None:
    store = SpillStore(tmp_path, limit=100)
    arrays: list[Array | None] = [np.arange(40, dtype=np.int16), None, np.zeros((0, 3)), np.float32([[1.5]])]
    store.put("kept", [np.ones(10)])
    store.put("moved", arrays)
    assert (store.held, store.moved) == (80, 84)
    for index, array in enumerate(arrays):
        found = store.get("moved", index)
        assert (found is None) == (array is None)
        if array is not None and found is not None:
            assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
    assert list(tmp_path.iterdir()) == []
    store.drop("kept")
    store.drop("moved")
    store.drop("never there")
    assert store.held == 0


def test_what_is_large_and_waits_long_is_in_a_file_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_stream, "_LARGE", 100)
    store = SpillStore(tmp_path)
    store.put("small", [np.ones(10)], spill=True)
    store.put("large", [np.ones(20)], spill=True)
    assert (store.held, store.moved) == (80, 160)


def test_a_sequence_of_arrays_stays_in_memory(tmp_path: Path) -> None:
    store = SpillStore(tmp_path, limit=0)
    sequence: list[object] = [[np.ones(3)], [np.ones(2), np.ones(1)]]
    store.put("sequence", sequence)  # type: ignore[arg-type]
    assert store.get("sequence", 1) is sequence[1]
    assert store.held == 0


def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError, match="cannot write in") as error:
        SpillStore(tmp_path / "file", limit=0).put("x", [np.ones(1)])
    assert "runtime.max_memory" in error.value.hint


def test_a_tensor_is_released_behind_its_last_reader_and_outputs_never() -> None:
    def stage(inputs: str, outputs: str) -> Stage:
        return cast(Stage, SimpleNamespace(inputs=tuple(inputs), outputs=tuple(outputs)))

    stages = [stage("x", "ab"), stage("a", "c"), stage("xc", "d"), stage("d", "y")]
    assert last_readers(stages, "y") == [["b"], ["a"], ["x", "c"], ["d"]]

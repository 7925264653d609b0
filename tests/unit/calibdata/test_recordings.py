"""Recordings as the steps that a model runs, with the states that it hands on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq_cli.calibdata.array_files import NpzDataset
from ptq_cli.calibdata.callable_dataset import CallableDataset
from ptq_cli.calibdata.carries import Cuts, carries_of, state_axes
from ptq_cli.calibdata.dataset.batches import Selection, Shard, StepBatch
from ptq_cli.calibdata.recordings import Recordings
from ptq_cli.core.errors import CarryError, DataShapeError, NonFiniteActivationError
from ptq_cli.core.tensors import Array, IndexSpec, TensorSpec

FLOAT = np.dtype(np.float32)
X, H = TensorSpec("x", FLOAT, (None, 2)), TensorSpec("h", FLOAT, (None, 1))
H_OUT = TensorSpec("h_out", FLOAT, (None, 1))


def add(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A model whose state is the sum of what it has read."""
    return {"h_out": inputs["h"] + inputs["x"].sum(1, keepdims=True)}


def steps_of(dataset: Recordings, size: int = 2, selection: Selection | None = None) -> list[StepBatch]:
    chosen = () if selection is None else (selection,)
    return [batch for batch in dataset.batches(size, *chosen) if isinstance(batch, StepBatch)]


def npz(place: Path, cuts: Cuts | None = None, **arrays: Array) -> Recordings:
    np.savez(place / "r.npz", **arrays)
    data = NpzDataset(str(place / "r.npz"))
    carries = carries_of({"h_out": "h"}, [X, H], [H_OUT], data.specs.__contains__)
    return Recordings(data, [X, H], carries, cuts or Cuts()).carried(lambda: add)


def test_states_start_at_zero_or_at_an_array_and_lengths_end_recordings(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    found = steps_of(npz(tmp_path, x=x, lengths=np.array([4, 2, 3]), label=np.array([7, 8, 9])))
    assert [batch.recordings for batch in found] == [(0, 1), (0, 1), (0,), (0,), (2,), (2,), (2,)]
    assert [batch.completes for batch in found] == [False, False, False, True, False, False, True]
    assert [batch.inputs["h"].ravel().tolist() for batch in found[:4]] == [[0, 0], [1, 17], [6], [15]]
    assert found[1].labels is not None and found[1].labels.tolist() == [7, 8]
    assert found[1].names == ("r.npz[0] step 1", "r.npz[1] step 1")
    begun = steps_of(npz(tmp_path, x=x, h=np.full((3, 1), 100, np.float32), label=np.ones((3, 4), int)))
    assert begun[0].inputs["h"].ravel().tolist() == [100, 100]


def test_a_selection_takes_whole_recordings(tmp_path: Path) -> None:
    data = npz(tmp_path, x=np.ones((5, 3, 2), np.float32))
    whole = [batch.names for batch in steps_of(data)]
    second = [batch.names for batch in steps_of(data, selection=Selection(Shard(2, 2)))]
    assert second == whole[3:6]
    assert [batch.names for batch in steps_of(data, selection=Selection(done=2))] == whole[6:]


def test_a_callable_yields_pairs_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def pairs():\n"
        "    for steps in (3, 5):\n"
        "        yield np.ones((steps, 2), np.float32), np.arange(steps)\n"
    )
    monkeypatch.chdir(tmp_path)
    data = CallableDataset("mine.py:pairs")
    carries = carries_of({}, [X, H], [H_OUT], data.specs.__contains__)
    found = steps_of(Recordings(data, [X, H], carries, Cuts()).carried(lambda: add))
    assert [batch.size for batch in found] == [2, 2, 2, 1, 1]
    assert found[4].labels is not None and found[4].labels.tolist() == [4]
    assert found[4].inputs["h"].tolist() == [[8.0]]


def test_rows_of_values_are_cut_with_an_overlap_that_begins_with_zeros(tmp_path: Path) -> None:
    data = npz(tmp_path, Cuts(hop=1), x=np.arange(1, 6, dtype=np.float32)[None])
    assert [batch.inputs["x"].tolist() for batch in steps_of(data)] == [
        [[0, 1]],
        [[1, 2]],
        [[2, 3]],
        [[3, 4]],
        [[4, 5]],
    ]


def test_a_decoder_reads_one_token_a_step_behind_a_cache_that_grows(tmp_path: Path) -> None:
    ids = IndexSpec("input_ids", np.dtype(np.int64), (None, None), rows=9)
    mask = TensorSpec("attention_mask", np.dtype(np.int64), (None, None))
    places = TensorSpec("position_ids", np.dtype(np.int64), (None, None))
    past = TensorSpec("past_key_values.0.key", FLOAT, (None, 2, None, 3))
    present = TensorSpec("present.0.key", FLOAT, (None, 2, None, 3))
    # What was filled up does not count; the mask of a step is that of its cache.
    texts = np.array([[1, 2, 3, 0], [4, 5, 6, 0]])
    np.savez(tmp_path / "t.npz", input_ids=texts, attention_mask=np.minimum(texts, 1))
    data, inputs = NpzDataset(str(tmp_path / "t.npz")), [ids, mask, places, past]
    carries = carries_of({}, inputs, [present], data.specs.__contains__)

    def grow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        old = inputs[past.name]
        return {present.name: np.concatenate([old, np.ones((len(old), 2, 1, 3), np.float32)], axis=2)}

    found = steps_of(Recordings(data, inputs, carries, Cuts()).carried(lambda: grow))
    assert [batch.inputs[past.name].shape[2] for batch in found] == [0, 1, 2]
    assert [batch.inputs["attention_mask"].shape for batch in found] == [(2, 1), (2, 2), (2, 3)]
    assert found[2].inputs["position_ids"].tolist() == [[2], [2]]
    assert [batch.labels.tolist() for batch in found if batch.labels is not None] == [
        [[2], [5]],
        [[3], [6]],
        [[-100], [-100]],
    ]


def explode(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"h_out": np.where(inputs["x"][:, :1] == 4, np.nan, inputs["h"]).astype(np.float32)}


def unlike(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"h_out": np.zeros((len(inputs["h"]), 4), np.float32)}


@pytest.mark.parametrize(
    ("model", "cuts", "arrays", "error", "text"),
    [
        (explode, Cuts(), {}, NonFiniteActivationError, r"'h_out' is nan after r.npz\[0\] step 2"),
        (unlike, Cuts(), {}, CarryError, r"has shape \[2, 4\], and the input 'h' \[\?, 1\]"),
        (add, Cuts(steps=9), {}, DataShapeError, "has 4 steps, and --set data.steps asks for 9"),
        (add, Cuts(), {"label": np.ones((2, 3), int)}, DataShapeError, "has 3 labels for 4 steps"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, model: Any, cuts: Cuts, arrays: dict[str, Array], error: type[Exception], text: str
) -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    with pytest.raises(error, match=text):
        steps_of(npz(tmp_path, cuts, x=x, **arrays).carried(lambda: model))


def test_what_names_and_shapes_show() -> None:
    def shown(inputs: list[str], outputs: list[str], shape: tuple[int | None, ...] = (None, 4)) -> list[str]:
        specs = [[TensorSpec(name, FLOAT, shape) for name in names] for names in (inputs, outputs)]
        return [str(item) for item in carries_of({}, *specs, lambda name: False)]

    assert shown(["x", "h0", "c0"], ["y", "hn", "cn"]) == ["hn=h0", "cn=c0"]
    assert shown(["input", "state"], ["output", "stateN"]) == ["stateN=state"]
    assert shown(["a", "state"], ["b", "new_state", "state_out"]) == [], "which of them, nobody knows"
    assert (
        carries_of({}, [H], [TensorSpec("h_out", np.dtype(np.float16), (None, 1))], lambda name: False) == ()
    )
    with pytest.raises(CarryError, match=r"is float16, and the input 'h' is float32"):
        carries_of(
            {"h_out": "h"}, [H], [TensorSpec("h_out", np.dtype(np.float16), (None, 1))], lambda name: False
        )


def test_a_star_stands_for_all_caches() -> None:
    caches = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    inputs, outputs = (
        [TensorSpec(f"{start}.{name}", FLOAT, (None, 2, None, 3)) for name in caches]
        for start in ("past_key_values", "present")
    )
    found = carries_of({"present.*": "past_key_values.*"}, inputs, outputs, lambda name: True)
    assert [str(item) for item in found] == [f"present.{name}=past_key_values.{name}" for name in caches]
    assert carries_of({}, inputs, outputs, lambda name: True) == (), "data that make empty caches"
    named = {"present.*": "past_key_values.*"}
    assert carries_of({**named, "*": "none"}, inputs, outputs, lambda name: True) == (), "the last said"
    assert carries_of({"*": "none", **named}, inputs, outputs, lambda name: True) == found


def test_the_samples_of_a_state_whose_sizes_have_no_names() -> None:
    state = TensorSpec("state", FLOAT, (2, None, 128))
    inputs = [TensorSpec("input", FLOAT, (None, None)), state]
    carries = carries_of({}, inputs, [TensorSpec("stateN", FLOAT, (None, None, None))], lambda name: False)
    assert state_axes(carries, inputs, {}) == {"state": 1}
    assert state_axes(carries, inputs, {"*": "none"}) == {}
    assert state_axes(carries, [TensorSpec("input", FLOAT, (1, 80)), state], {}) == {}


def test_parts_of_the_data_divide_recordings(tmp_path: Path) -> None:
    from ptq_cli.calibdata.dataset.dataset import Division

    data = npz(tmp_path, x=np.ones((20, 3, 2), np.float32))
    part = data.divided(Division(0.25))

    def names(dataset: Recordings) -> Iterator[str]:
        return (name.split(" ")[0] for batch in dataset.batches(4) for name in batch.names)

    kept, aside = set(names(part)), set(names(part.other))
    assert not kept & aside and len(kept | aside) == 20

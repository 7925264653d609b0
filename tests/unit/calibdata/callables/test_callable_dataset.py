import numpy as np
import pytest

from ptq_cli.calibdata.callable_dataset import CallableDataset
from ptq_cli.core.errors import DataFormatError, EmptyDataError, EntryPointError, InputFileError, LabelError

COUNTING = """
def batches():
    for start in (0, 3):
        x = np.arange(start, start + 3, dtype=np.float32)[:, None]
        yield {"x": x, "label": np.arange(start, start + 3)}
"""


def test_batches_of_the_size_that_was_asked_for(save_code):
    dataset = CallableDataset(save_code(COUNTING))
    batches = list(dataset.batches(4))
    assert [batch.inputs["x"].ravel().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch.labels.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert batches[1].names == ("data.py:batches[4]", "data.py:batches[5]")


def test_what_is_known_before_iterating(save_code):
    dataset = CallableDataset(save_code(COUNTING))
    assert (dataset.count, dataset.has_labels, dataset.class_names) == (None, True, ())
    assert [str(spec) for spec in dataset.specs.values()] == ["x: float32[?, 1]"]


def test_it_is_called_anew_for_each_iteration(save_code):
    dataset = CallableDataset(save_code(COUNTING))
    assert [sum(batch.size for batch in dataset.batches(2)) for _ in range(2)] == [6, 6]


@pytest.mark.parametrize("samples", [1, 3, 4, 6, 100])
def test_samples_limit(save_code, samples):
    dataset = CallableDataset(save_code(COUNTING), samples)
    found = [int(label) for batch in dataset.batches(4) for label in batch.labels]
    assert found == list(range(min(samples, 6)))


def test_no_more_is_pulled_than_the_limit_needs(save_code):
    source = save_code("def batches():\n    yield np.ones((2, 1))\n    raise ValueError('one too many')")
    assert [batch.size for batch in CallableDataset(source, samples=2).batches(32)] == [2]


def test_list_of_batches_is_as_good_as_a_generator(save_code):
    dataset = CallableDataset(save_code("def batches(): return [np.ones((2, 1)), np.ones((1, 1))]"))
    assert [batch.size for batch in dataset.batches(3)] == [3]


def test_one_generator_for_all_calls_is_refused(save_code):
    dataset = CallableDataset(save_code("it = iter([np.ones((2, 1))] * 3)\ndef batches(): return it"))
    with pytest.raises(
        DataFormatError, match="returned the same iterator twice, and its first batch is used up"
    ):
        next(dataset.batches(1))


RETURNED = {
    "array": ("np.ones((2, 3))", "returned a ndarray, expected an iterable of batches"),
    "dict": ("{'x': np.ones((2, 3))}", "returned a dict, expected an iterable"),
    "none": ("None", "returned a NoneType, expected an iterable"),
    "text": ("'calib.npz'", "returned a str, expected an iterable"),
}


@pytest.mark.parametrize(("value", "message"), RETURNED.values(), ids=RETURNED.keys())
def test_result_that_is_no_iterable_of_batches(save_code, value, message):
    with pytest.raises(DataFormatError, match=message):
        CallableDataset(save_code(f"def batches(): return {value}"))


RAISING = {
    "when_called": ("def batches(): return 1 / 0", "raised when called: ZeroDivisionError: division by zero"),
    "needs_arguments": ("def batches(folder): yield folder", "raised when called: TypeError: .*'folder'"),
    "first_batch": ("def batches():\n    yield {}['x']", "raised in batch 0: KeyError: 'x'"),
}


@pytest.mark.parametrize(("body", "message"), RAISING.values(), ids=RAISING.keys())
def test_errors_of_the_users_code(save_code, body, message):
    with pytest.raises(EntryPointError, match=rf"data '.*data\.py:batches' {message}"):
        CallableDataset(save_code(body))


def test_error_in_a_later_batch_has_its_number(save_code):
    dataset = CallableDataset(
        save_code("def batches():\n    yield np.ones((2, 1))\n    raise OSError('disk')")
    )
    with pytest.raises(EntryPointError, match="raised in batch 1: OSError: disk"):
        list(dataset.batches(1))


def test_labels_that_stop(save_code):
    body = (
        "def batches():\n    yield {'x': np.ones(1), 'label': np.ones(1, int)}\n    yield {'x': np.ones(1)}"
    )
    with pytest.raises(LabelError, match=r"batch 1 of .* has no labels, unlike the first batch"):
        list(CallableDataset(save_code(body)).batches(1))


def test_labels_that_appear(save_code):
    body = (
        "def batches():\n    yield {'x': np.ones(1)}\n    yield {'x': np.ones(1), 'label': np.ones(1, int)}"
    )
    with pytest.raises(LabelError, match=r"batch 1 of .* has labels, unlike the first batch"):
        list(CallableDataset(save_code(body)).batches(1))


def test_no_batch_at_all(save_code):
    with pytest.raises(EmptyDataError, match="yields no batches"):
        CallableDataset(save_code("def batches(): return []"))


def test_later_batch_that_is_no_array_has_its_number(save_code):
    dataset = CallableDataset(save_code("def batches(): return [np.ones((2, 1)), [3]]"))
    with pytest.raises(DataFormatError, match=r"batch 1 of .* is a list"):
        list(dataset.batches(2))


def test_digest_is_of_the_text_and_the_name(save_code, tmp_path):
    source = save_code(COUNTING + "\nother = batches")
    digest = CallableDataset(source).digest()
    assert CallableDataset(source, samples=1).digest() == digest
    assert CallableDataset(source.replace(":batches", ":other")).digest() != digest
    save_code(COUNTING + "\n# changed")
    assert CallableDataset(source).digest() != digest


def test_digest_of_a_file_that_vanished(save_code, tmp_path):
    dataset = CallableDataset(save_code(COUNTING))
    (tmp_path / "data.py").unlink()
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        dataset.digest()


def test_module_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "calib_module_for_ptq.py").write_text(f"import numpy as np\n{COUNTING}")
    monkeypatch.chdir(tmp_path)
    dataset = CallableDataset("calib_module_for_ptq:batches")
    assert sum(batch.size for batch in dataset.batches(4)) == 6
    assert len(dataset.digest()) == 64


def test_missing_callable_suggests(save_code):
    with pytest.raises(EntryPointError, match=r"has no 'batchs' .did you mean 'batches'"):
        CallableDataset(save_code(COUNTING).replace(":batches", ":batchs"))


def test_dtype_is_as_yielded(save_code):
    dataset = CallableDataset(save_code("def batches(): yield np.ones((2, 1), np.float16)"))
    assert dataset.specs[""].dtype == np.float16

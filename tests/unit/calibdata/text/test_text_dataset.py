"""Texts become the inputs of a model: windows, masks, positions, pairs, labels, empty caches."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ptq_cli.calibdata.bind import bind_inputs
from ptq_cli.calibdata.dataset.dataset import DividedDataset, Division
from ptq_cli.calibdata.dataset.labels import rename_arrays
from ptq_cli.calibdata.open_dataset import open_dataset
from ptq_cli.calibdata.text import token_samples
from ptq_cli.calibdata.text.text_rows import TextColumns, text_rows
from ptq_cli.core.errors import (
    CacheInputError,
    DataFormatError,
    DataNameError,
    DataTypeError,
    EmptyDataError,
    InputFileError,
    LabelError,
    PtqError,
    SequenceLengthError,
    TokenizerError,
)
from ptq_cli.core.tensors import IndexSpec, TensorSpec
from ptq_cli.recipe.sections import ImageSettings, TextSettings
from tests.small_tokenizers import WORDS

INT64 = np.dtype(np.int64)
IDS = TensorSpec("input_ids", INT64, (None, None))
MASK = TensorSpec("attention_mask", INT64, (None, None))


def opened(source, tokenizer, samples=None, **settings):
    return open_dataset(
        str(source), ImageSettings(), TextSettings(tokenizer=tokenizer, **settings), samples=samples
    )


def only_batch(dataset, *inputs, size=100):
    (batch,) = bind_inputs(dataset, inputs or [IDS, MASK]).batches(size)
    return batch


def number(*words):
    return [WORDS.index(word) for word in words]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """Two lines of seven words, all different, and a blank one."""
    path = tmp_path / "story.txt"
    path.write_text(" ".join(WORDS[:7]) + "\n\n" + " ".join(WORDS[7:]) + "\n")
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    texts = [("a small model", "reads text", 1.5), ("every line of text that someone has written", "it", 0.0)]
    lines = [json.dumps({"text": one, "other": other, "score": score}) for one, other, score in texts]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_byte_order_mark_is_no_part_of_a_text_or_a_tokenizer(story, words):
    plain = only_batch(opened(story, words, window=7))
    for path in (story, Path(words)):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = only_batch(opened(story, words, window=7))
    assert marked.inputs["input_ids"].tolist() == plain.inputs["input_ids"].tolist()


def test_text_is_cut_into_windows_and_the_rest_is_dropped(story, words):
    batch = only_batch(opened(story, words, window=4))
    assert batch.inputs["input_ids"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert batch.inputs["attention_mask"].tolist() == np.ones((3, 4)).tolist()
    assert batch.labels.tolist() == [[1, 2, 3, -100], [5, 6, 7, -100], [9, 10, 11, -100]]
    padded = only_batch(opened(story, words, window=4, tail="pad"))
    assert padded.inputs["input_ids"][3].tolist() == [12, 13, 0, 0]
    assert padded.inputs["attention_mask"][3].tolist() == [1, 1, 0, 0]
    assert padded.labels[3].tolist() == [13, -100, -100, -100]


@pytest.mark.parametrize(("keep_blank", "texts"), [(True, ["a", "\n\nb", "c"]), (False, ["a", "b", "c"])])
def test_blank_lines_belong_to_a_stream_of_text_alone(tmp_path, keep_blank, texts):
    path = tmp_path / "poem.txt"
    path.write_text("\n\na\n\n \nb\nc\n\n")
    rows = text_rows([str(path)], TextColumns((), None), keep_blank=keep_blank)
    assert [row.texts[0] for row in rows] == texts


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_overlapping_windows_predict_each_token_once(story, words, tail):
    batch = only_batch(opened(story, words, window=6, stride=2, tail=tail))
    assert batch.inputs["input_ids"][:, 0].tolist() == [0, 2, 4, 6, 8]
    predicted = batch.labels[batch.labels != -100]
    assert predicted.tolist() == list(range(1, 14))


def test_samples_limit_the_windows_and_no_more_text_is_read(story, words, monkeypatch):
    monkeypatch.setattr(token_samples, "_PIECE", 1)
    read = []
    whole = token_samples.pieces_of
    monkeypatch.setattr(
        "ptq_cli.calibdata.text.text_dataset.pieces_of",
        lambda *given: (read.append(piece) or piece for piece in whole(*given)),
    )
    assert bind_inputs(opened(story, words, samples=1, window=4), [IDS]).count == 1
    assert len(read) == 1


def test_an_input_decides_the_window_and_the_types(story, words):
    inputs = [
        TensorSpec("input_ids", np.dtype(np.int32), (1, 5)),
        TensorSpec("attention_mask", np.dtype(np.float32), (1, 5)),
        TensorSpec("position_ids", INT64, (1, 5)),
        TensorSpec("token_type_ids", INT64, (1, 5)),
    ]
    (first, second) = bind_inputs(opened(story, words), inputs).batches(1)
    assert {name: array.dtype.name for name, array in first.inputs.items()} == {
        "input_ids": "int32",
        "attention_mask": "float32",
        "position_ids": "int64",
        "token_type_ids": "int64",
    }
    assert second.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert (
        bind_inputs(opened(story, words), [IDS, IndexSpec("position_ids", INT64, (None, None), rows=6)]).count
        == 2
    )


def test_a_model_with_one_input_takes_the_tokens_whatever_its_name(story, words):
    tokens = TensorSpec("tokens", INT64, (None, None))
    assert only_batch(opened(story, words, window=7), tokens).inputs["tokens"].shape == (2, 7)
    renamed = rename_arrays(opened(story, words, window=7), {"input_ids": "ids", "attention_mask": "keep"})
    batch = only_batch(
        renamed, TensorSpec("ids", INT64, (None, None)), TensorSpec("keep", INT64, (None, None))
    )
    assert batch.inputs["keep"].sum() == 14


def test_caches_are_empty_or_masked(story, words):
    free = TensorSpec("past_key_values.0.key", np.dtype(np.float16), (None, 3, None, 8))
    empty = only_batch(opened(story, words, window=7), IDS, MASK, free).inputs["past_key_values.0.key"]
    assert (empty.shape, empty.dtype.name) == ((2, 3, 0, 8), "float16")
    fixed = TensorSpec("past_key_values.0.key", np.dtype(np.float32), (None, 3, 5, 8))
    mask = TensorSpec("attention_mask", INT64, (None, 12))
    batch = only_batch(opened(story, words, window=7), IDS, mask, fixed)
    assert not batch.inputs["past_key_values.0.key"].any()
    assert batch.inputs["attention_mask"].tolist() == [[0] * 5 + [1] * 7] * 2


def test_each_text_is_a_sample_of_an_encoder(story, encoder):
    batch = only_batch(opened(story, encoder, window=10))
    assert batch.inputs["input_ids"][0].tolist() == [2, *range(5, 12), 3, 0]
    assert batch.inputs["attention_mask"][0].tolist() == [1] * 9 + [0]
    assert batch.names == ("story.txt[0]", "story.txt[2]")
    cut = bind_inputs(opened(story, encoder, window=8), [IDS])
    assert cut.notes == ("2 of 2 texts are longer than 8 tokens, and cut to them",)
    packed = only_batch(opened(story, encoder, window=7, pack=True))
    assert packed.inputs["input_ids"].tolist() == np.arange(5, 19).reshape(2, 7).tolist()


def test_pairs_are_read_together_or_apart_with_their_score(rows, encoder):
    pair = {"columns": ["text", "other"], "label_column": "score", "window": 12}
    types = TensorSpec("token_type_ids", INT64, (None, None))
    joined = only_batch(opened(rows, encoder, **pair), IDS, types)
    assert joined.inputs["input_ids"][0].tolist() == [2, 5, 6, 7, 3, 8, 12, 3, 0, 0, 0, 0]
    assert joined.inputs["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert joined.labels.tolist() == [1.5, 0.0]
    apart = only_batch(opened(rows, encoder, **pair, pairs="apart"))
    assert apart.inputs["attention_mask"].sum(axis=1).tolist() == [5, 4, 10, 3]
    assert apart.labels.tolist() == [1.5, 1.5, 0.0, 0.0]


def test_columns_of_parquet_are_read_with_classes(tmp_path, encoder):
    table = pa.table({"text": [f"{word} text" for word in WORDS], "label": list(range(14)), "n": [1] * 14})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
    dataset = opened(tmp_path / "x.parquet", encoder, window=5)
    assert dataset.has_labels
    batch = only_batch(dataset)
    assert batch.labels.tolist() == list(range(14))
    assert batch.inputs["input_ids"][3, 1] == 5 + 3
    narrow = opened(tmp_path / "x.parquet", None)
    assert "n" in narrow.specs and "text" not in narrow.specs


def test_hidden_tokens_are_the_labels(story, encoder):
    whole = only_batch(opened(story, encoder, window=10)).inputs["input_ids"]
    dataset = opened(story, encoder, window=10, mask_share=0.3)
    batch = only_batch(dataset)
    hidden = batch.inputs["input_ids"] == 4
    assert dataset.has_labels
    assert (hidden.sum(axis=1) >= 1).all() and not hidden[:, 0].any()
    assert np.array_equal(batch.labels, np.where(hidden, whole, -100))
    assert np.array_equal(only_batch(opened(story, encoder, window=10, mask_share=0.3)).labels, batch.labels)


def test_a_folder_is_its_text_files_and_the_digest_covers_all_that_decides_the_tokens(
    tmp_path, story, words, encoder
):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("b.txt", "a.txt"):
        (folder / name).write_text(f"{WORDS[ord(name[0]) - 97]} " * 4)
    assert only_batch(opened(folder, words, window=4)).inputs["input_ids"].tolist() == [[0] * 4, [1] * 4]
    variants = [
        opened(story, words, window=4),
        opened(story, words, window=5),
        opened(story, encoder, window=4),
        opened(story, words, window=4, tail="pad"),
        opened(folder, words, window=4),
    ]
    digests = [bind_inputs(dataset, [IDS]).digest() for dataset in variants]
    assert len(set(digests)) == len(variants)
    assert bind_inputs(opened(story, words, window=4), [IDS]).digest() == digests[0]


def test_a_part_that_is_set_aside_is_cut_as_the_whole(story, words):
    whole = opened(story, words, window=2)
    divided = bind_inputs(DividedDataset(whole, Division(0.5)), [IDS])
    other = bind_inputs(DividedDataset(whole, Division(0.5)).other, [IDS])
    assert divided.count + other.count == 7
    found = [
        row.tolist()
        for part in (divided, other)
        for batch in part.batches(2)
        for row in batch.inputs["input_ids"]
    ]
    assert sorted(found) == np.arange(14).reshape(7, 2).tolist()


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


PLAIN = b"a small model\n"
FAULTS = {
    "no-tokenizer": (
        "x.txt",
        PLAIN,
        {"tokenizer": None},
        DataFormatError,
        "is text, and a model reads tokens",
    ),
    "missing": (
        "x.txt",
        PLAIN,
        {"tokenizer": "nowhere.json"},
        InputFileError,
        "tokenizer 'nowhere.json' does not",
    ),
    "no-tokenizer-file": (
        "x.txt",
        PLAIN,
        {"tokenizer": "x.txt"},
        TokenizerError,
        "'x.txt' is not a tokenizer: ",
    ),
    "empty": ("x.txt", b"", {}, DataFormatError, "is an empty file"),
    "blank": ("x.txt", b" \n\n", {}, EmptyDataError, "holds no text"),
    "short": ("x.txt", PLAIN, {"window": 4}, SequenceLengthError, "has 3 tokens, fewer than one window of 4"),
    "binary": ("x.txt", b"a\0b", {}, DataFormatError, "line 1 of 'x.txt' is not text in UTF-8"),
    "latin": ("x.txt", b"a\ncaf\xe9\n", {}, DataFormatError, "line 2 of 'x.txt' is not text in UTF-8"),
    "column-of-lines": (
        "x.txt",
        PLAIN,
        {"columns": ["text"]},
        DataNameError,
        "is plain text, which has none",
    ),
    "column": (
        "x.jsonl",
        b'{"text": "a"}',
        {"columns": ["texd"]},
        DataNameError,
        "no column 'texd' (did you mean",
    ),
    "no-object": ("x.jsonl", b"[1]", {}, DataFormatError, "line 1 of 'x.jsonl' is JSON, but not an object"),
    "no-json": ("x.jsonl", b"{", {}, DataFormatError, "line 1 of 'x.jsonl' is not valid JSON"),
    "number": (
        "x.jsonl",
        b'{"text": 3}',
        {},
        DataTypeError,
        "column 'text' of x.jsonl[0] is int, expected text",
    ),
    "label": ("x.jsonl", b'{"text": "a", "label": "b"}', {}, LabelError, "is 'b', expected a number"),
    "stride": (
        "x.txt",
        PLAIN * 9,
        {"stride": 200},
        SequenceLengthError,
        "'text.stride' is 200, longer than the window of 128",
    ),
    "no-mask": ("x.txt", PLAIN, {"mask_share": 0.5}, TokenizerError, "'words.json' has no mask token"),
    "lost-label": (
        "x.jsonl",
        b'{"text": "a", "label": 1}',
        {"pack": True},
        SequenceLengthError,
        "would be lost",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_says_what_is_wrong(name, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, content, settings, kind, says = FAULTS[name]
    write(tmp_path, file, content)
    with pytest.raises(kind) as caught:
        bind_inputs(opened(file, **{"tokenizer": "words.json", **settings}), [IDS])
    assert says in caught.value.message
    assert caught.value.hint and isinstance(caught.value, PtqError)


CACHE = "past_key_values.0.key"
UNFIT = {
    "vocabulary": (
        [IndexSpec("input_ids", INT64, (None, None), rows=6)],
        TokenizerError,
        "has the token 6, and the",
    ),
    "declared": (
        [TensorSpec("input_ids", INT64, (None, 3))],
        SequenceLengthError,
        "the model takes sequences of 3",
    ),
    "positions": (
        [IDS, IndexSpec("position_ids", INT64, (None, None), rows=5)],
        SequenceLengthError,
        "'text.window' is 7 tokens, but the model has positions for 5",
    ),
    "cache": (
        [IDS, TensorSpec(CACHE, np.dtype("f4"), (None, None, None, 8))],
        CacheInputError,
        "how many heads",
    ),
    "no-shape": ([IDS, TensorSpec(CACHE, np.dtype("f4"), ())], CacheInputError, "does not say"),
    "unknown": (
        [IDS, TensorSpec("pixels", np.dtype("f4"), (None, 3))],
        DataNameError,
        "no array for input 'pixels'",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_model_that_the_text_does_not_fit(name, story, words):
    inputs, kind, says = UNFIT[name]
    with pytest.raises(kind) as caught:
        bind_inputs(opened(story, words, window=7), inputs)
    assert says in caught.value.message
    assert caught.value.hint


def test_too_many_tokens_and_too_long_lines_are_refused(story, words, monkeypatch):
    monkeypatch.setattr(token_samples, "MOST_TOKENS", 5)
    with pytest.raises(SequenceLengthError, match="has more than 5 tokens"):
        bind_inputs(opened(story, words, window=4), [IDS])
    monkeypatch.setattr("ptq_cli.calibdata.text.text_rows._LONGEST_LINE", 10)
    with pytest.raises(DataFormatError, match="is longer than 16 MiB"):
        bind_inputs(opened(story, words, window=4), [IDS])

"""Make the folders in which the commands of the pages run: a small network with data.

python -m tools.pages.folders NAME FOLDER

The name of a sample stands for its folder, with few of its data. ``images``, ``digits`` and ``plays`` are
three of them without a recipe; ``exported`` is the language sample as a folder of two graphs. The others are
networks that are made here, from a seed, in less than a second: ``detector``, ``reader``, ``listener``,
``encoder``, ``classifier``. ``project`` is one that has been quantized, with all that the examples of the
commands name. ``empty`` has no files.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tools.pages import networks, scenes
from tools.pages.project_folder import make_project, make_project_without_recipe
from tools.pages.sample_folders import copy_sample, sample_names

CALIBRATION, EVALUATION, TRAINING = 64, 96, 256
STATES, MEMORY = 48, 0.5
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (
    *("the", "a", "cat", "dog", "bird", "child", "woman", "man", "sits", "runs", "sleeps", "eats", "plays"),
    *("sings", "on", "under", "near", "with", "grass", "house", "tree", "river", "ball", "song", "bread"),
    *("red", "old", "small", "green", "quiet", "two"),
)


def make(name: str, folder: Path, *, whole: bool = False) -> None:
    """Make the folder of this name; a sample has all of its data if it is to be whole."""
    if name in sample_names():
        copy_sample(name, folder, whole=whole)
    else:
        MAKERS[name](folder)


def folder_names() -> list[str]:
    """Return the names of all folders that can be made."""
    return [*sample_names(), *MAKERS]


def make_detector(folder: Path) -> None:
    """A detector of colored squares: ``model.onnx``, ``calib.npz``, and ``eval.npz`` with boxes as labels."""
    random = np.random.default_rng(1)
    weights: dict[str, networks.AnyArray] = {}
    for index, (before, after) in enumerate(((3, 24), (24, 48), (48, 96))):
        weights[f"backbone.{index}.weight"] = networks.random_weight(
            random, after, before, 3, 3, inputs=before * 9
        )
        weights[f"backbone.{index}.bias"] = random.uniform(-0.3, 0.3, after).astype(np.float32)
    rows, columns = np.divmod(np.arange(64, dtype=np.float32), 8)
    grid = np.stack([columns, rows, 0 * rows, 0 * rows])[None]
    fixed: dict[str, networks.AnyArray] = {
        "head.weight": np.zeros((7, 96, 1, 1), np.float32),
        "head.bias": np.zeros(7, np.float32),
        "flat_shape": np.array([0, 7, 64]),
        "parts": np.array([4, 3]),
        "grid": grid.astype(np.float32),
        "stride": np.array(scenes.STRIDE, np.float32),
    }
    model = networks.build(networks.DETECTOR, {**weights, **fixed})
    pictures, boxes = scenes.squares(random, 2 * TRAINING)
    features = networks.features_of(model, "features", {"images": pictures})
    wanted, holds = scenes.wanted_cells(boxes)
    every = features.transpose(0, 2, 3, 1).reshape(-1, 96)
    goals = wanted.transpose(0, 2, 3, 1).reshape(-1, 7)
    inside = holds.reshape(-1) > 0
    box, box_bias = networks.fitted(every[inside], goals[inside, :4], 1.0)
    score, score_bias = networks.fitted(
        np.concatenate([every, np.repeat(every[inside], 8, 0)]),
        np.concatenate([goals[:, 4:], np.repeat(goals[inside, 4:], 8, 0)]),
        1.0,
    )
    head = np.concatenate([box, score], 1).T[:, :, None, None]
    networks.replace_constants(
        model, {"head.weight": head, "head.bias": np.concatenate([box_bias, score_bias])}
    )
    networks.save(model, folder / "model.onnx")
    np.savez(folder / "calib.npz", images=scenes.squares(random, CALIBRATION)[0])
    pictures, boxes = scenes.squares(random, EVALUATION)
    np.savez(folder / "eval.npz", images=pictures, label=boxes)


def make_reader(folder: Path) -> None:
    """A reader of digits with an LSTM: ``model.onnx``, ``calib.npz``, ``eval.npz`` with texts as labels."""
    random = np.random.default_rng(2)
    inputs = 32 * 4
    constants: dict[str, networks.AnyArray] = {
        "conv.0.weight": networks.random_weight(random, 16, 1, 3, 3, inputs=9),
        "conv.0.bias": np.zeros(16, np.float32),
        "conv.1.weight": networks.random_weight(random, 32, 16, 3, 3, inputs=144),
        "conv.1.bias": np.zeros(32, np.float32),
        "steps_shape": np.array([0, 0, inputs]),
        "features_shape": np.array([0, 0, 128]),
        "lstm.w": networks.random_weight(random, 2, 256, inputs, inputs=inputs) / 2,
        "lstm.r": networks.random_weight(random, 2, 256, 64, inputs=64) / 2,
        "lstm.b": np.zeros((2, 512), np.float32),
        "head.weight": np.zeros((128, 11), np.float32),
        "head.bias": np.zeros(11, np.float32),
    }
    model = networks.build(networks.READER, constants)
    pictures, texts = scenes.strips(random, 4 * TRAINING)
    features = networks.features_of(model, "features", {"image": pictures})
    goals = scenes.characters_of_steps(texts, len(features))
    weight, bias = networks.fitted(features.reshape(-1, 128), goals.reshape(-1, 11), 1e-2)
    networks.replace_constants(model, {"head.weight": weight, "head.bias": bias})
    networks.save(model, folder / "model.onnx")
    np.savez(folder / "calib.npz", image=scenes.strips(random, CALIBRATION)[0])
    pictures, texts = scenes.strips(random, EVALUATION)
    codes = np.zeros((len(texts), scenes.LONGEST), np.int64)
    for row, text in zip(codes, texts, strict=True):
        row[: len(text)] = [1 + int(digit) for digit in text]
    np.savez(folder / "eval.npz", image=pictures, label=codes)


def make_listener(folder: Path) -> None:
    """A detector of tones that remembers: ``model.onnx``, and recordings ``calib.npz`` and ``eval.npz``."""
    random = np.random.default_rng(3)
    memory = random.standard_normal((STATES, STATES))
    memory *= MEMORY / np.abs(np.linalg.eigvals(memory)).max()
    constants: dict[str, networks.AnyArray] = {
        "usual_rate": np.array(16000, np.float32),
        "zero": np.array(0),
        "filters.weight": networks.random_weight(random, scenes.FRAME, 96, inputs=2 * scenes.FRAME),
        "mix.weight": networks.random_weight(random, 96, STATES, inputs=96),
        "memory.weight": memory.astype(np.float32),
        "head.weight": np.zeros((STATES, 1), np.float32),
        "head.bias": np.zeros(1, np.float32),
    }
    model = networks.build(networks.LISTENER, constants)
    heard, sounds = scenes.recordings(random, TRAINING, 32)
    state, kept = np.zeros((2, TRAINING, STATES), np.float32), []
    for frame in heard.transpose(1, 0, 2):
        arrays = {"input": frame, "state": state, "sr": np.array(16000)}
        state = networks.features_of(model, "stateN", arrays)
        kept.append(state[0])
    goals = (8 * sounds.T - 4).reshape(-1, 1).astype(np.float32)
    weight, bias = networks.fitted(np.concatenate(kept), goals, 1e-1)
    networks.replace_constants(model, {"head.weight": weight, "head.bias": bias})
    networks.save(model, folder / "model.onnx")
    for name in ("calib", "eval"):
        heard, sounds = scenes.recordings(random, 24, 40)
        np.savez(folder / f"{name}.npz", input=heard)
    np.savez(folder / "eval.npz", input=heard, label=(sounds > 0).astype(np.int64))


def make_encoder(folder: Path) -> None:
    """An encoder of sentences with random weights: ``model.onnx``, ``tokenizer.json`` and JSON lines."""
    random = np.random.default_rng(4)
    networks.save(networks.build(networks.ENCODER, _encoder(random, folder)), folder / "model.onnx")
    _write_pairs(random, folder)


def make_classifier(folder: Path) -> None:
    """A classifier that finds animals in sentences: ``model.onnx``, ``tokenizer.json``, and JSON lines."""
    random = np.random.default_rng(5)
    constants = _encoder(random, folder)
    constants |= {"head.weight": np.zeros((64, 2), np.float32), "head.bias": np.zeros(2, np.float32)}
    model = networks.build(networks.CLASSIFIER, constants)
    sentences = random.integers(len(SPECIALS), len(SPECIALS) + len(WORDS), (8 * TRAINING, 8))
    ids = np.pad(np.pad(sentences, ((0, 0), (1, 0)), constant_values=2), ((0, 0), (0, 1)), constant_values=3)
    features = networks.features_of(model, "mean", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    animals = [len(SPECIALS) + WORDS.index(word) for word in ("cat", "dog", "bird")]
    classes = np.isin(sentences, animals).any(1).astype(int)
    weight, bias = networks.fitted(features, np.eye(2, dtype=np.float32)[classes], 1e-2)
    networks.replace_constants(model, {"head.weight": weight, "head.bias": bias})
    networks.save(model, folder / "model.onnx")
    for name, rows in (
        ("train.jsonl", range(CALIBRATION)),
        ("test.jsonl", range(CALIBRATION, 4 * CALIBRATION)),
    ):
        texts = [" ".join(WORDS[index - len(SPECIALS)] for index in sentences[row]) for row in rows]
        lines = [
            f'{{"sentence": "{text}", "class": {classes[row]}}}'
            for text, row in zip(texts, rows, strict=True)
        ]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_exported(folder: Path) -> None:
    """The language sample as an exporter leaves it, in ``exported/``, with ``calib.txt`` and ``eval.txt``."""
    copy_sample("shakespeare_language_model", folder, has_recipe=False)
    exported = folder / "exported"
    exported.mkdir()
    for name in ("decoder_with_past_model.onnx", "model.safetensors", "tokenizer.json"):
        (folder / name).rename(exported / name)
    (folder / "model.onnx").rename(exported / "decoder_model.onnx")
    (exported / "config.json").write_text('{"model_type": "llama"}\n', encoding="utf-8")
    # Latencies, which the page does not show, would take most of the time of its commands.
    (folder / "ptq.toml").write_text("[evaluation]\nlatency = false\n", encoding="utf-8")


def _encoder(random: np.random.Generator, folder: Path) -> dict[str, networks.AnyArray]:
    """Write the tokenizer, and return the constants of an encoder with random weights."""
    table = {word: index for index, word in enumerate([*SPECIALS, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token=SPECIALS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    shapes = {"query": (64, 64), "key": (64, 64), "value": (64, 64), "up": (64, 128), "down": (128, 64)}
    constants: dict[str, networks.AnyArray] = {
        f"{name}.weight": networks.random_weight(random, *shape, inputs=2 * shape[0])
        for name, shape in shapes.items()
    }
    return constants | {
        "table": random.standard_normal((len(table), 64)).astype(np.float32),
        "query.weight": (constants["query.weight"] / 8).astype(np.float32),
        "one": np.array(1, np.float32),
        "huge": np.array(-1e4, np.float32),
        "second": np.array([1]),
        "scales": np.ones(64, np.float32),
        "zeros": np.zeros(64, np.float32),
    }


def _write_pairs(random: np.random.Generator, folder: Path) -> None:
    for name, count in (("calib.jsonl", CALIBRATION), ("pairs.jsonl", EVALUATION)):
        lines = []
        for _ in range(count):
            first = [str(word) for word in random.choice(WORDS, 8)]
            same = random.random(8) < random.random()
            second = [
                word if keep else str(random.choice(WORDS)) for word, keep in zip(first, same, strict=True)
            ]
            score = 5 * len(set(first) & set(second)) / len(set(first))
            texts = f'"sentence1": "{" ".join(first)}", "sentence2": "{" ".join(second)}"'
            lines.append(f'{{{texts}, "score": {score:.2f}}}')
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "empty": lambda folder: folder.mkdir(exist_ok=True),
    "images": partial(copy_sample, "cifar10_cnn", has_recipe=False),
    "digits": partial(copy_sample, "spoken_digits_transformer", has_recipe=False),
    "plays": partial(copy_sample, "shakespeare_language_model", has_recipe=False),
    "detector": make_detector,
    "reader": make_reader,
    "listener": make_listener,
    "encoder": make_encoder,
    "classifier": make_classifier,
    "exported": make_exported,
    "project": make_project,
    "project without recipe": make_project_without_recipe,
}


def main() -> None:
    """Make one folder."""
    if len(sys.argv) != 3 or sys.argv[1] not in folder_names():
        sys.exit(f"usage: python -m tools.pages.folders {'|'.join(folder_names())} FOLDER")
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    make(sys.argv[1], folder)
    print(f"made {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")


if __name__ == "__main__":
    main()

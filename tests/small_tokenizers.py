"""Small tokenizers: one of a language model, one of an encoder."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [
    *("a", "small", "model", "reads", "every", "line", "of", "text", "that", "someone", "has", "written"),
    *("for", "it"),
]


def save_tokenizers(folder: Path) -> tuple[str, str]:
    """Write ``words.json``, where each word is a token, and ``encoder.json``, which adds some around."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tables = {"words.json": WORDS, "encoder.json": [*specials, *WORDS]}
    for name, words in tables.items():
        table = {word: index for index, word in enumerate([*words, "<unk>"])}
        tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if name == "encoder.json":
            tokenizer.post_processor = processors.TemplateProcessing(
                single="[CLS] $A [SEP]",
                pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
            )
        tokenizer.save(str(folder / name))
    return str(folder / "words.json"), str(folder / "encoder.json")

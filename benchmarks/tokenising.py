"""Writing the tokens of a text to disk, the check that they give the text back included, against tokenizers alone.

    python benchmarks/tokenising.py TEXT.txt [--characters 8000000] [--vocab 8000] [--rounds 5]

Each line of TEXT is a document; they are repeated up to ``--characters``. The tokenizer is a byte-level BPE, trained on
it. Both ways take turns in one process and one thread, by processor time; the ratio is the median over rounds, with its
quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import tokenizers

from vaak.text.corpora.stores import write_tokens
from vaak.text.tokenizer import Tokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
AT_ONCE = 2000


def trained_on(documents: list[str], vocab_size: int) -> tokenizers.Tokenizer:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        documents,
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return bpe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--characters", type=int, default=8_000_000)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    lines = [line for line in options.text.read_text(encoding="utf-8").splitlines() if line]
    documents = lines * max(1, options.characters // sum(map(len, lines)))
    library = trained_on(lines, options.vocab)
    ours = Tokenizer.from_json(library.to_str())

    def encoded() -> None:
        for first in range(0, len(documents), AT_ONCE):
            library.encode_batch(documents[first : first + AT_ONCE], add_special_tokens=False)

    def written() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_tokens(Path(folder) / "store", documents, ours)

    seconds: dict[str, list[float]] = {}
    ways = {"tokenizers, encoded": encoded, "Vaak, encoded, checked, written": written}
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            if number:
                seconds.setdefault(name, []).append(time.process_time() - begun)
    print(f"{sum(map(len, documents)):,} characters\n\n| | s | ÷ tokenizers |\n|---|---|---|")
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, next(iter(seconds.values())), strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"| {name} | {statistics.median(own):.2f} | {middle:.2f} ({low:.2f} … {high:.2f}) |")


if __name__ == "__main__":
    main()

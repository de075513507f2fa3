"""The embedded corpus: a small grammar of Hindi that generates sentences and minimal pairs, and pairs with English.

>>> next(sentences("train", 1, seed=1)) == next(sentences("train", 9, seed=1))
True
"""

from vaak.core.splits import SPLITS
from vaak.text.grammar.corpus import sentences
from vaak.text.grammar.lexicon import Lexicon, lexicon
from vaak.text.grammar.pairs import PHENOMENA, MinimalPair, Phenomenon, minimal_pairs
from vaak.text.grammar.translation import grammar_pairs

__all__ = [
    "PHENOMENA",
    "SPLITS",
    "Lexicon",
    "MinimalPair",
    "Phenomenon",
    "grammar_pairs",
    "lexicon",
    "minimal_pairs",
    "sentences",
]

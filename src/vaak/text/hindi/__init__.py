"""The embedded corpus: a small grammar of Hindi that generates sentences, and minimal pairs that test what was learnt.

>>> next(sentences("train", 1, seed=1)) == next(sentences("train", 9, seed=1))
True
"""

from vaak.text.hindi.corpus import sentences
from vaak.text.hindi.holdout import SPLITS
from vaak.text.hindi.lexicon import Lexicon, lexicon
from vaak.text.hindi.pairs import PHENOMENA, MinimalPair, Phenomenon, minimal_pairs

__all__ = ["PHENOMENA", "SPLITS", "Lexicon", "MinimalPair", "Phenomenon", "lexicon", "minimal_pairs", "sentences"]

"""Random keys: every draw in Vaak is seeded by a hash of its purpose and place, never by what was drawn before.

Keys have 32 bits because torch's CPU generator keeps no more of a seed.
"""

import hashlib
from enum import StrEnum

EVALUATION_SEED = 42
"""Evaluations draw (masks, noise) by this one, whatever the seed of training: figures of runs are made alike."""


class Purpose(StrEnum):
    """The use of a key; in the comments, the parts that follow it. No two uses share a purpose and its parts."""

    DATA = "data"  # seed, epoch, index, occurrence
    EVALUATION = "evaluation"  # data: split, EVALUATION_SEED, 0, index, 0; model: EVALUATION_SEED, split, batch, chunk
    MODEL = "model"  # seed, step, microbatch, chunk, objective (if it is not the only one)
    INITIALISE = "initialise"  # seed
    PLAN = "plan"  # seed, epoch
    MIXTURE = "mixture"  # of parts: seed, shares
    CURRICULUM = "curriculum"  # seed, epoch, scheduler
    RANDOM_FEATURES = "features"  # of linear attention: seed, step, number of the module
    FEATURE_EXTRACTION = "extraction"  # index
    AUGMENTATION = "augmentation"  # key of the example, name of the change; for a data set: seed, copy, row
    CONVERSATION = "conversation"  # seed, split, index
    DURATIONS = "durations"  # of conversations: seed, split
    VOICES = "voices"  # seed
    SENTENCES = "sentences"  # of voices: seed, number
    GRAMMAR_SENTENCES = "hindi sentences"  # split, seed
    GRAMMAR_SPLIT = "hindi split"  # lexemes
    GRAMMAR_COMBINATION = "hindi combination"  # two lexemes
    GRAMMAR_PAIRS = "hindi pairs"  # minimal pairs: phenomenon, seed; pairs of texts: split, seed
    GENERATE = "generate"  # seed, row
    NOISE = "noise"  # of flow matching: a draw of the example
    SPEAK = "speak"  # the same, speaking: speaker, symbols
    TRANSLATE = "translate"  # seed, copy, token ids
    TRANSCRIBE = "transcribe"  # frame at which a window begins, attempt
    FOLD = "fold"  # of pairs whose words are counted: words
    FINGERPRINT = "fingerprint"  # index
    SAMPLE = "sample"  # of a set: seed, name
    CHECK = "check"  # gradients: seed, what; draws of a task: number, index


def draw_key(purpose: Purpose, *parts: int | str) -> int:
    """Return a seed in [0, 2**32) that depends on every part and on their order.

    >>> draw_key(Purpose.DATA, 1, 0, 7, 0) == draw_key(Purpose.DATA, 1, 0, 7, 0)
    True
    >>> draw_key(Purpose.DATA, 1, 0, 7, 0) == draw_key(Purpose.DATA, 1, 7, 0, 0)
    False
    """
    text = "\x1f".join((purpose, *map(str, parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")

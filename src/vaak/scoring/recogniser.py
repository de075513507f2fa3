"""An independent recogniser: PocketSphinx with the models of American English that its package has.

It is old, and mistakes many words of clear recordings: a figure means something next to the same figure of recordings.

Skipped and repeated words are found in another way, which knows the text: a grammar in which each word may be left out
or repeated, at a price, so that only what was clearly not spoken is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from vaak.core.errors import UserError

SAMPLING_RATE = 16_000
LEVEL, NOISE = 0.05, 1e-3
"""Root mean square of the speech, and of the noise under it: digital silence is nothing that it was trained on."""
PRICE = 1e-8
"""Probability that a word is left out, and that it is repeated, in the grammar."""
PROTOCOL = "PocketSphinx {version}, en-us; words without case and punctuation"

_OTHER = re.compile(r"[^a-z' ]+")


class WordErrors(NamedTuple):
    """Words of texts, and the errors of what was recognised."""

    words: int
    errors: int


class Omissions(NamedTuple):
    """The words of a text, those of them that were not spoken, and those that were repeated."""

    words: int
    skipped: int
    repeated: int


def fold_text(text: str) -> str:
    """Lower case, letters and apostrophes only.

    >>> fold_text("It's nine — o'clock, Dr. Roe-Smith!")
    "it's nine o'clock dr roe smith"
    """
    return " ".join(_OTHER.sub(" ", text.lower().replace("’", "'")).split())


class Recogniser:
    """Recognises speech; a transcript doesn't depend on earlier inputs."""

    def __init__(self) -> None:
        """Raises UserError if its package is missing."""
        try:
            import jiwer  # noqa: F401
            from pocketsphinx import Config, Decoder
        except ImportError as error:
            raise UserError(
                f"recognising speech requires pocketsphinx and jiwer ({error}); pip install 'vaak[tts-eval]'"
            ) from error
        self._decoder = Decoder(Config(loglevel="FATAL", cmn="batch"))

    @property
    def protocol(self) -> str:
        """The name and version of the recogniser."""
        from importlib.metadata import version

        return PROTOCOL.format(version=version("pocketsphinx"))

    def recognise(self, samples: np.ndarray) -> str:
        """Return the words in ``samples`` ``(time,)`` at 16 kHz, separated by spaces."""
        self._decoder.activate_search()
        return self._decode_samples(samples)

    def word_errors(self, text: str, samples: np.ndarray) -> WordErrors:
        """Substitutions, deletions and insertions, against a text in words."""
        import jiwer

        text, recognised = fold_text(text), self.recognise(samples)
        if not text:
            return WordErrors(0, len(recognised.split()))
        found = jiwer.process_words(text, recognised)
        return WordErrors(len(text.split()), found.substitutions + found.deletions + found.insertions)

    def omissions(self, text: str, samples: np.ndarray, pronounce: Callable[[str], str | None]) -> Omissions:
        """Words of a ``text`` in words that the ``samples`` ``(time,)`` lack, or have twice.

        ``pronounce`` gives ARPAbet without stress, separated by spaces, of a word that the recogniser doesn't know;
        words without any are left out of the text.
        """
        words = [word for word in fold_text(text).split() if self._knows(word, pronounce)]
        if not words:
            return Omissions(0, 0, 0)
        self._decoder.add_fsg(
            "text",
            self._decoder.create_fsg(
                "text",
                0,
                len(words),
                [
                    transition
                    for index, word in enumerate(words)
                    for transition in (
                        (index, index + 1, 1 - PRICE, word),
                        (index, index + 1, PRICE),
                        (index + 1, index + 1, PRICE, word),
                    )
                ],
            ),
        )
        self._decoder.activate_search("text")
        recognised = self._decode_samples(samples).split()
        blocks = SequenceMatcher(None, words, recognised, autojunk=False).get_opcodes()
        missing = [(last - first) - (ended - begun) for _, first, last, begun, ended in blocks]
        # A word that is taken for its neighbour, repeated, is neither: it was mistaken.
        skipped, repeated = (sum(max(0, sign * number) for number in missing) for sign in (1, -1))
        return Omissions(len(words), skipped, repeated)

    def _knows(self, word: str, pronounce: Callable[[str], str | None]) -> bool:
        if self._decoder.lookup_word(word) is None:
            phones = pronounce(word)
            if not phones:
                return False
            self._decoder.add_word(word, phones)
        return True

    def _decode_samples(self, samples: np.ndarray) -> str:
        level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
        noise = NOISE * np.random.default_rng(0).standard_normal(len(samples))
        sound = samples * (LEVEL / level if level else 1.0) + noise
        whole = (sound.clip(-1, 1) * 32767).astype(np.int16)
        # Forgets the cepstral mean of what came before.
        self._decoder.reinit_feat()
        self._decoder.start_utt()
        self._decoder.process_raw(whole.tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return "" if hypothesis is None else fold_text(re.sub(r"\(\d+\)", "", hypothesis.hypstr))

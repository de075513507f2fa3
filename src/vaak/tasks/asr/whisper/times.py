"""Times by a Whisper: the rules of its tokens for times, the segments they make, the times of words.

    <|0.00|> so it is<|1.20|><|1.20|> not so<|2.00|>      two segments: times come in pairs, and never go back
    <|0.00|> so it is<|1.20|><|1.20|> no                  the second one isn't complete: the audio ends within it

A word's times are those of its tokens, which are found in the decoder's attention to the audio: some heads attend to
the moment that the token is spoken. Their weights, each position's compared with those of other tokens, smoothed, and
averaged, have a cheapest path that only moves forward, in the text and in the audio (dynamic time warping).

Sources: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision"; openai/whisper
(``decoding.py``, ``timing.py``). What is found is what transformers finds (``WhisperTimeStampLogitsProcessor``,
``_retrieve_segment``, ``_extract_token_timestamps``, ``_combine_tokens_into_words``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.audio.segments import Interval

if TYPE_CHECKING:
    from vaak.tasks.asr.vocabulary import Vocabulary

SECONDS_OF_A_TIME = 0.02
"""Seconds from one token for a time to the next, and from one of the encoder's positions to the next."""
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose words aren't separated by spaces: each character is one, as far as times go."""
BEFORE_A_WORD, AFTER_A_WORD = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"
SEPARATE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
UNFINISHED = "\ufffd"
"""The sign for bytes that are a part of a character."""


class TimeRules(NamedTuple):
    """Which tokens may follow, where ``times`` are those of times, ``end`` ends the text and all others are its own.

    ``latest`` is the last time with which a window may begin, as an index; None: any.
    """

    times: range
    end: int
    latest: int | None

    def __call__(self, logits: Tensor, written: Tensor) -> Tensor:
        """Return logits ``(row, vocab)`` of the token after ``written`` ``(row, token)``, -inf for forbidden ones."""
        first, stop, length = self.times.start, self.times.stop, written.shape[1]
        logits = logits.clone()
        # Views: filling them below fills the copy.
        times, before, after = logits[:, first:stop], logits[:, :first], logits[:, stop:]
        if length == 0:
            before.fill_(-torch.inf)
            after.fill_(-torch.inf)
            if self.latest is not None:
                times[:, self.latest + 1 :].fill_(-torch.inf)
        else:
            is_time = (written >= first) & (written < stop)
            # Two times (or the first one) begin a segment, so text follows; one after text ends it, so another's
            # beginning follows, or the end of the text.
            begins = is_time[:, -1] if length < 2 else is_time[:, -1] & is_time[:, -2]
            ends = is_time[:, -1] & ~begins
            # Without a time yet, last is the place before the first time, so any is allowed.
            # Times never go back.
            last = written.where(is_time, first - 1).amax(1)
            # A segment isn't empty.
            lowest = torch.where(ends, last, last + 1)
            numbers = torch.arange(first, stop, device=logits.device)
            times.masked_fill_((numbers < lowest[:, None]) | begins[:, None], -torch.inf)
            end = logits[:, self.end].clone()
            for text in (before, after):
                text.masked_fill_(ends[:, None], -torch.inf)
            logits[:, self.end] = end
        # A time, whichever, rather than any one token of text that is less probable than all times together. Single
        # times share their probability with their neighbours 0.02 s away; only their sum says how likely any time is.
        others = torch.stack([text.amax(1) for text in (before, after) if text.shape[1]]).amax(0).float()
        is_time_better = (times.float().logsumexp(1) > others)[:, None]
        for text in (before, after):
            text.masked_fill_(is_time_better, -torch.inf)
        return logits


class Piece(NamedTuple):
    """Tokens ``first`` to ``last`` of a window's, said from ``start`` to ``end`` seconds after its beginning."""

    first: int
    last: int
    start: float
    end: float


def split_segments(tokens: Sequence[int], times: range, seconds: float) -> tuple[list[Piece], float | None]:
    """Return the segments in the tokens of a window of ``seconds``, and how much of it they are: None for all of it.

    What follows the last complete segment isn't in them, if there is one.

    >>> split_segments([100, 7, 103, 103, 8, 9], range(100, 200), 30.0)
    ([Piece(first=0, last=4, start=0.0, end=0.06)], 0.06)
    >>> split_segments([100, 7, 103, 103, 8, 110], range(100, 200), 30.0)[0][1]
    Piece(first=3, last=6, start=0.06, end=0.2)
    """

    def second(token: int) -> float:
        return round((token - times.start) * SECONDS_OF_A_TIME, 9)

    is_time = [token in times for token in tokens]
    cuts = [place + 1 for place in range(len(tokens) - 1) if is_time[place] and is_time[place + 1]]
    if not cuts:
        end = next((second(token) for token in reversed(tokens) if token in times), 0.0)
        return [Piece(0, len(tokens), 0.0, end or seconds)], None
    is_complete = is_time[-2:] == [False, True]
    # As transformers does, the last complete segment keeps the time that begins the next one: its two last tokens show
    # that it isn't the last of the window.
    cuts = [*cuts, len(tokens)] if is_complete else [*cuts[:-1], cuts[-1] + 1]
    pieces = []
    for first, last in zip([0, *cuts], cuts, strict=False):
        at_its_end = tokens[last - 1] if last < cuts[-1] or is_complete else tokens[last - 2]
        pieces.append(Piece(first, last, second(tokens[first]), second(at_its_end)))
    return pieces, None if is_complete else pieces[-1].end


def token_times(weights: Tensor, median_width: int) -> list[float]:
    """When each token is spoken, in seconds, by the attention ``(head, token, position)`` of what reads the tokens."""
    if weights.shape[1] < 2 or not weights.shape[2]:
        return [0.0] * weights.shape[1]
    deviations, means = torch.std_mean(weights, dim=1, keepdim=True, unbiased=False)
    compared = torch.where(deviations > 0, (weights - means) / deviations, 0.0)
    found = warped(-median_filtered(compared, median_width).mean(0).double().cpu().numpy())
    return [SECONDS_OF_A_TIME * position for position in found]


def median_filtered(values: Tensor, width: int) -> Tensor:
    """``values`` ``(..., position)``, each the median of ``width`` around it; those at the ends are mirrored."""
    reach = width // 2
    if values.shape[-1] <= reach:
        return values
    windows = torch.nn.functional.pad(values, (reach, reach), mode="reflect").unfold(-1, width, 1)
    # Torch's median isn't deterministic on CUDA.
    return windows.sort(-1).values[..., reach]


def warped(costs: np.ndarray) -> list[int]:
    """The position at which each row of ``costs`` ``(row, position)`` begins on the cheapest path through all of them.

    A step goes to the next row, the next position, or both. Computed by diagonals, whose cells don't need each other.
    """
    rows, positions = costs.shape
    total = np.full((rows + 1, positions + 1), np.inf, np.float32)
    total[0, 0] = 0
    # 0: both, 1: next row, 2: next position.
    steps = np.full((rows + 1, positions + 1), 2, np.int8)
    steps[1:, 0] = 1
    for diagonal in range(2, rows + positions + 1):
        row = np.arange(max(1, diagonal - positions), min(rows, diagonal - 1) + 1)
        position = diagonal - row
        both, down, right = total[row - 1, position - 1], total[row - 1, position], total[row, position - 1]
        # Of equal costs it is the next position, as in Whisper's own code: another choice would give other times.
        step = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
        total[row, position] = costs[row - 1, position - 1] + np.choose(step, (both, down, right))
        steps[row, position] = step
    begins, row, position = [0] * rows, rows, positions
    while row > 0 and position > 0:
        begins[row - 1] = position - 1
        step = steps[row, position]
        row, position = row - (step < 2), position - (step != 1)
    return begins


def read_words(
    vocabulary: Vocabulary, tokens: Sequence[int], times: Sequence[float], language: str | None, start: float = 0.0
) -> tuple[Interval, ...]:
    """The words in the tokens of a segment, each from the time at which the token before it is read, to its last one's.

    ``times`` are those of the tokens, in seconds, ``start`` that of the first. Tokens of times aren't words.
    """
    found = []
    for text, places in _spoken_words(vocabulary, tokens, language):
        before = times[places[0] - 1] if places[0] else start
        found.append(Interval(round(before, 2), round(times[places[-1]], 2), text))
    return tuple(found)


def word_probabilities(
    vocabulary: Vocabulary, tokens: Sequence[int], log_probs: Sequence[float], language: str | None
) -> tuple[float, ...]:
    """How probable each of the words of ``read_words`` is: the geometric mean of its tokens' probabilities.

    ``log_probs`` are those of the tokens. Sources: Oneață, Caranica, Stan and Cucu 2021, "An Evaluation of Word-Level
    Confidence Estimation for End-to-End Automatic Speech Recognition" (means of log-probabilities over a word's
    tokens). Differs: OpenAI's ``timing.py`` has the arithmetic mean, in which certain tokens hide an uncertain one.
    """
    return tuple(
        round(math.exp(sum(log_probs[place] for place in places) / len(places)), 4)
        for _, places in _spoken_words(vocabulary, tokens, language)
    )


def _spoken_words(
    vocabulary: Vocabulary, tokens: Sequence[int], language: str | None
) -> Iterator[tuple[str, list[int]]]:
    """Yield each word, and the places of its tokens; tokens of times aren't words."""
    spoken = [place for place, token in enumerate(tokens) if token not in vocabulary.times]
    first = 0
    for text, size in words_by_token(vocabulary, [tokens[place] for place in spoken], language not in WITHOUT_SPACES):
        if text.strip():
            yield text.strip(), spoken[first : first + size]
        first += size


def words_by_token(vocabulary: Vocabulary, tokens: Sequence[int], by_spaces: bool = True) -> list[tuple[str, int]]:
    """The text of each word, with the space before it, and the number of its ``tokens``; punctuation is part of it."""
    words = list[tuple[str, int]]()
    for text, size, begins in _characters(vocabulary, tokens):
        begins_a_word = text.startswith(" ") or text.strip() in SEPARATE or not vocabulary.is_text(begins)
        if not words or not by_spaces or begins_a_word:
            words.append((text, size))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + size)
    # From the right, so that several signs in a row all join the word after them.
    for place in range(len(words) - 2, -1, -1):
        text, size = words[place]
        if text.startswith(" ") and text.strip() in BEFORE_A_WORD:
            words[place : place + 2] = [(text + words[place + 1][0], size + words[place + 1][1])]
    joined = words[:1]
    for text, size in words[1:]:
        if not joined[-1][0].endswith(" ") and text in AFTER_A_WORD:
            joined[-1] = (joined[-1][0] + text, joined[-1][1] + size)
        else:
            joined.append((text, size))
    return joined


def _characters(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[tuple[str, int, int]]:
    """Whole characters, the number of their tokens, and the first of these."""
    whole, offset, first, found = vocabulary.raw(tokens), 0, 0, list[tuple[str, int, int]]()
    for last in range(1, len(tokens) + 1):
        text = vocabulary.raw(tokens[first:last])
        place = offset + text.find(UNFINISHED)
        # A token may end within a character, which the next ones complete. Where the whole text has the sign at this
        # place, too, nothing completes it: the bytes are none of a character.
        if UNFINISHED not in text or place >= len(whole) or whole[place] == UNFINISHED:
            found.append((text, last - first, tokens[first]))
            offset, first = offset + len(text), last
    return found

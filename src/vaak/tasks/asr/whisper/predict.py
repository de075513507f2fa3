"""Transcripts of audio of any length, by a trained Whisper.

audio ──cut at silences──▶ windows ──features──▶ encoder ──search, token by token──▶ transcripts, in order

How a recording becomes windows is in ../long_form.py, before the search, or in seeking.py, during it. A window whose
text fails a threshold is written again, at a higher temperature. Source: Radford et al. 2022, "Robust Speech
Recognition via Large-Scale Weak Supervision", section 4.5; the output equals that of transformers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from vaak.audio.segments import Interval
from vaak.core.batch import send
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.nn.decoding.beam_search import BeamSettings, beam_search
from vaak.nn.decoding.hotword_writer import HotwordWriter
from vaak.nn.decoding.hotwords import Hotwords
from vaak.nn.decoding.sampling import Hypothesis, SamplingSettings, Writer, without_dropout, write
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.languages import LanguageChoice, suggest_language, tell_choice
from vaak.tasks.asr.long_form import Window
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.transcripts import Segment, Transcript
from vaak.tasks.asr.vocabulary import BEFORE, ENGLISH, NO_TIMES, Vocabulary
from vaak.tasks.asr.whisper.features import WhisperFeatures
from vaak.tasks.asr.whisper.model import AsrModel, Encoded
from vaak.tasks.asr.whisper.network import FRAMES_PER_SECOND
from vaak.tasks.asr.whisper.seeking import Decoded, count_frames, transcripts_by_seeking
from vaak.tasks.asr.whisper.times import (
    SECONDS_OF_A_TIME,
    Piece,
    TimeRules,
    read_words,
    split_segments,
    token_times,
    word_probabilities,
)
from vaak.tasks.base import pad_rows
from vaak.tasks.fetching import import_transformers

AUTO = "auto"
"""The language that is found in the audio."""


@dataclass(frozen=True)
class WhisperTranscriber(Transcriber):
    """A Whisper with its features and vocabulary, and the search for transcripts.

    ``heads`` are the layers and heads of attention that follow the words in the audio; empty: those of the last half.
    """

    model: AsrModel
    features: WhisperFeatures
    heads: tuple[tuple[int, int], ...] = ()
    scores_tokens: bool = False
    """Whether segments have the log-probabilities of their tokens."""

    pads_windows: ClassVar[bool] = True

    def scoring_tokens(self) -> Self:
        return replace(self, scores_tokens=True)

    def transcribe_files(
        self, paths: Iterable[Path], batch_size: int | None = None
    ) -> Iterator[Transcript | UserError]:
        if self.decoding.long_form == "seek":
            yield from transcripts_by_seeking(self, iter(paths), batch_size)
        else:
            yield from super().transcribe_files(paths, batch_size)

    def segments_of_windows(self, windows: list[Window]) -> list[list[Segment]]:
        """Return the segments of each window, all computed at once."""
        encoded = self.encoded([window.features for window in windows])
        # The seed of what is drawn is the window's place in its recording, so the size of a batch changes no text.
        keys = [round(window.begin * FRAMES_PER_SECOND) for window in windows]
        found = list[list[Segment]]()
        for row, (window, decoded) in enumerate(zip(windows, self.decode(encoded, keys), strict=True)):
            if decoded.is_silence:
                found.append([])
            elif not self.decoding.writes_times:
                text, language = self.vocabulary.decode(decoded.tokens), self._found_language(decoded)
                scores = self._score_tokens(decoded, encoded.rows(slice(row, row + 1)), window.num_samples)
                found.append([Segment(window.start, window.end, text, language=language, token_logprobs=scores)])
            else:
                frames = count_frames(window.num_samples)
                seconds = min(frames // 2 * SECONDS_OF_A_TIME, window.end - window.begin)
                pieces = _complete_pieces(decoded.tokens, self.vocabulary.times, seconds)
                found.append(self.segments_of_pieces(decoded, pieces, window.begin, encoded, row, frames))
        return found

    def _found_language(self, decoded: Decoded) -> str | None:
        """Return the language, where it is one that was found."""
        return decoded.language if self.decoding.language == AUTO else None

    def segments_of_pieces(
        self, decoded: Decoded, pieces: list[Piece], begin: float, encoded: Encoded, row: int, frames: int
    ) -> list[Segment]:
        """Return the segments of a window's ``pieces``, which begins at ``begin`` seconds and has ``frames`` of audio.

        It is that of a ``row`` of encoded audio.
        """
        times, logs, segments = list[float](), list[float](), list[Segment]()
        if self.decoding.timestamps == "word" or self.scores_tokens:
            found, logs = self._read_along(decoded, encoded.rows(slice(row, row + 1)), frames)
            times = [begin + one for one in found] if self.decoding.timestamps == "word" else []
        for first, last, start, end in pieces:
            tokens, words, probabilities = decoded.tokens[first:last], tuple[Interval, ...](), tuple[float, ...]()
            if times:
                words = read_words(self.vocabulary, tokens, times[first:last], decoded.language, begin + start)
                probabilities = word_probabilities(self.vocabulary, tokens, logs[first:last], decoded.language)
            segment = (round(begin + start, 3), round(begin + end, 3), self.vocabulary.decode(tokens))
            scores = self._name_tokens(tokens, logs[first:last]) if self.scores_tokens else ()
            segments.append(Segment(*segment, words, self._found_language(decoded), probabilities, scores))
        return segments

    def _score_tokens(self, decoded: Decoded, encoded: Encoded, num_samples: int) -> tuple[tuple[bytes, float], ...]:
        """Return the log-probabilities of a window's tokens, of its encoded audio; none if nobody asks for them."""
        if not self.scores_tokens:
            return ()
        return self._name_tokens(decoded.tokens, self._read_along(decoded, encoded, count_frames(num_samples))[1])

    def _name_tokens(self, tokens: Sequence[int], logs: Sequence[float]) -> tuple[tuple[bytes, float], ...]:
        written, times = self.vocabulary.token_bytes, self.vocabulary.times
        return tuple((written[token], log) for token, log in zip(tokens, logs, strict=True) if token not in times)

    def _read_along(self, decoded: Decoded, encoded: Encoded, frames: int) -> tuple[list[float], list[float]]:
        """When each token is spoken, in seconds from the beginning of the window, and its log-probability."""
        config, read = self.model.whisper.config, len(decoded.prompt)
        # where nobody has chosen some: all of the last half, as OpenAI's
        layers = range(config.decoder_layers // 2, config.decoder_layers)
        heads = self.heads or list(product(layers, range(config.decoder_attention_heads)))
        # Where the text didn't end by itself, its last token was written but never read.
        tokens = [*decoded.prompt, *decoded.tokens[: None if decoded.ended else -1]]
        with without_dropout(self.model), torch.inference_mode():
            weights, logits = self.model.read_along(torch.tensor([tokens], device=self.device), encoded, heads)
            # The logits at a place are those of the next token.
            logs = logits[0, read - 1 : read - 1 + len(decoded.tokens)].float().log_softmax(-1)
            written = torch.tensor(decoded.tokens, dtype=torch.long, device=self.device)
            own = logs.gather(1, written[:, None])[:, 0].tolist()
        found = token_times(weights[0][:, read:, : frames // 2], config.median_filter_width) or [0.0]
        return [*found, *found[-1:] * (len(decoded.tokens) - len(found))], own

    def encoded(self, features: Sequence[np.ndarray]) -> Encoded:
        """Return the encoder's states of features ``(bin, frame)``, all computed at once.

        Of samples ``(time,)`` the device makes features first.
        """
        with without_dropout(self.model), torch.inference_mode():
            if features[0].ndim > 1:
                return self.model.encode(torch.from_numpy(np.stack(features)).to(self.device))
            samples = torch.from_numpy(pad_rows(features))
            return self.model.encode(self.features.of_batch({"samples": samples.to(self.device)}))

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        """Return the words of each window's features ``(bin, frame)``, all computed at once."""
        return self._texts(self.decode(self.encoded(features)))

    def continue_text(self, features: np.ndarray, settled: str) -> str:
        encoded, end = self.encoded([features]), self.vocabulary.ids.end
        tokens = self.vocabulary.encode(settled) if settled else []
        prompt = [*self.prompt(self.languages(encoded)[0], self.first_prompt), *tokens]
        room = self.model.max_target_length - len(prompt)
        longest = min(room, (self.decoding.max_new_tokens or room) - len(tokens))
        if longest < 1:
            return settled
        read = torch.tensor([prompt])
        with without_dropout(self.model), torch.inference_mode():
            # After settled words the text may end at once.
            writer = TranscriptWriter(self.model, encoded, self.vocabulary, read, is_first=not tokens)
            begin = send(read[:, -1].contiguous(), self.device)
            [found] = write(writer, begin, SamplingSettings(longest, temperature=0.0, stop_ids=(end,)), [])
        return self.vocabulary.decode([*tokens, *found.tokens])

    def _texts(self, decoded: Iterable[Decoded]) -> list[str]:
        return ["" if one.is_silence else self.vocabulary.decode(one.tokens) for one in decoded]

    def decode_texts(self, encoded: Any) -> list[str]:
        """Return the transcript of each row of encoded audio."""
        return self.texts_and_ends(encoded)[0]

    def texts_and_ends(self, encoded: Encoded) -> tuple[list[str], list[bool]]:
        """Return the transcript of each row of encoded audio, and whether the model ended it itself."""
        size = self.decoding.batch_size
        parts = [encoded.rows(slice(start, start + size)) for start in range(0, len(encoded.states), size)]
        found = [decoded for some in parts for decoded in self.decode(some)]
        return self._texts(found), [one.ended for one in found]

    def decode(
        self,
        encoded: Encoded,
        keys: Sequence[int] | None = None,
        languages: Sequence[str | None] | None = None,
        before: Sequence[Sequence[int]] | None = None,
    ) -> list[Decoded]:
        """Write each row of encoded audio, again at a higher temperature while the text fails a threshold.

        ``keys`` decide what is drawn; ``languages`` that are known aren't looked for; ``before`` are tokens that are
        read as said before (default: the prompt of the options).
        """
        number, options = len(encoded.states), self.decoding
        keys, before = keys or [0] * number, before or [self.first_prompt] * number
        languages = self.languages(encoded) if languages is None else languages
        prompts = [self.prompt(*one) for one in zip(languages, before, strict=True)]
        silence = [0.0] * number if options.no_speech_threshold is None else self._silence(encoded, prompts)
        found, open_rows = dict[int, Decoded](), list(range(number))
        for attempt, temperature in enumerate(options.temperatures):
            # Only rows whose text failed a threshold are written again, hotter each time.
            some = encoded if len(open_rows) == number else encoded.rows(torch.tensor(open_rows))
            draws = [draw_key(Purpose.TRANSCRIBE, keys[row], attempt) for row in open_rows]
            written = self.written(some, [prompts[row] for row in open_rows], temperature, draws)
            failed = []
            for row, best in zip(open_rows, written, strict=True):
                fails, is_silence = self._judge(best, silence[row])
                found[row] = Decoded(
                    best.tokens, best.ended, tuple(prompts[row]), temperature, languages[row], is_silence
                )
                failed += [row] if fails else []
            open_rows = failed
            if not open_rows:
                break
        return [found[row] for row in range(number)]

    def _judge(self, best: Hypothesis, silence: float) -> tuple[bool, bool]:
        """Whether the text fails a threshold, and whether the window is silent, by the probability ``silence``."""
        options, tokens = self.decoding, [*best.tokens, *([self.vocabulary.ids.end] if best.ended else [])]
        most, least, loudest = (
            options.compression_ratio_threshold, options.logprob_threshold, options.no_speech_threshold,
        )  # fmt: skip
        repeats = most is not None and compression_ratio(tokens, self.vocabulary.ids.size) > most
        is_improbable = least is not None and best.log_probability / max(1, len(tokens)) < least
        is_silence = is_improbable and loudest is not None and silence > loudest
        return (repeats or is_improbable) and not is_silence, is_silence

    def _silence(self, encoded: Encoded, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return the probability of silence in each row, after the first token of its prompt proper."""
        first = self.vocabulary.ids.prompt[0]
        token = self.vocabulary.no_speech
        assert token is not None, "require_decoding asked for it"
        read = [prompt[: prompt.index(first) + 1] for prompt in prompts]
        found = dict[int, float]()
        with without_dropout(self.model), torch.inference_mode():
            # Those of one length together: the text before makes lengths differ.
            for length in sorted({len(one) for one in read}):
                rows = [row for row, one in enumerate(read) if len(one) == length]
                some = encoded if len(rows) == len(read) else encoded.rows(torch.tensor(rows))
                tokens = torch.tensor([read[row] for row in rows], device=self.device)
                logits = self.model.decode(tokens, some)[:, -1]
                found |= zip(rows, logits.float().softmax(-1)[:, token].tolist(), strict=True)
        return [found[row] for row in range(len(read))]

    def languages(self, encoded: Encoded) -> list[str | None]:
        """Return the language of each row: that of the options, or the most probable one."""
        number, known = len(encoded.states), self.vocabulary.languages
        if self.decoding.language != AUTO:
            asked = self.decoding.language
            return [self.vocabulary.trained_language if asked is None else self.vocabulary.find_code(asked)] * number
        with without_dropout(self.model), torch.inference_mode():
            begin = torch.full((number, 1), self.vocabulary.ids.prompt[0], device=self.device)
            logits = self.model.decode(begin, encoded)[:, -1]
            best = logits[:, torch.tensor([*known.values()], device=self.device)].argmax(1).tolist()
        return [[*known][place] for place in best]

    def prompt(self, language: str | None, before: Sequence[int] = ()) -> list[int]:
        """Return the tokens that are read before the first one is written; ``before`` is the preceding text."""
        ids, options = self.vocabulary.ids, self.decoding
        found = list(ids.prompt)
        if self.vocabulary.languages and language is not None:
            code = self.vocabulary.find_code(language)
            found[1:3] = self.vocabulary.languages[code], self.vocabulary.token(f"<|{options.task}|>")
        if options.writes_times:
            found = [token for token in found if token != self.vocabulary.token(NO_TIMES)]
        if not before:
            return found
        kept = before[-(self.model.max_target_length // 2 - 1) :]
        return [self.vocabulary.token(BEFORE), *kept, *found]

    @cached_property
    def first_prompt(self) -> list[int]:
        """The tokens of the options' prompt."""
        return self.vocabulary.encode(self.decoding.prompt) if self.decoding.prompt else []

    def written(
        self,
        encoded: Encoded,
        prompts: Sequence[Sequence[int]] | None = None,
        temperature: float = 0.0,
        keys: Sequence[int] = (),
    ) -> list[Hypothesis]:
        """Return the most probable tokens that were found for each row of encoded audio, or those that were drawn.

        They follow ``prompts`` (default: that of training); rows with prompts of one length are written together.
        """
        number, found = len(encoded.states), dict[int, Hypothesis]()
        prompts = [list(self.vocabulary.ids.prompt)] * number if prompts is None else prompts
        with without_dropout(self.model), torch.inference_mode():
            for length in sorted({len(one) for one in prompts}):
                rows = [row for row in range(number) if len(prompts[row]) == length]
                some = encoded if len(rows) == number else encoded.rows(torch.tensor(rows))
                read = torch.tensor([list(prompts[row]) for row in rows])
                drawn = [keys[row] for row in rows] if temperature else []
                found |= zip(rows, self._write_rows(some, read, temperature, drawn), strict=True)
        return [found[row] for row in range(number)]

    def _write_rows(
        self, encoded: Encoded, prompts: Tensor, temperature: float, keys: Sequence[int]
    ) -> list[Hypothesis]:
        ids, options = self.vocabulary.ids, self.decoding
        # transformers, whose texts with times these are, counts the last token, which isn't read
        remaining = self.model.max_target_length - prompts.shape[1] + (not options.writes_times)
        longest = max(1, min(remaining, options.max_new_tokens or remaining))
        rules = None
        if options.writes_times:
            latest = options.max_initial_timestamp
            latest_index = None if latest is None else round(latest / SECONDS_OF_A_TIME)
            rules = TimeRules(self.vocabulary.times, ids.end, latest_index)
        writer: Writer = TranscriptWriter(self.model, encoded, self.vocabulary, prompts, rules)
        begin, hotwords = send(prompts[:, -1].contiguous(), encoded.states.device), self.hotwords
        searches = options.method == "beam" and not temperature
        find_gains: Callable[[], Tensor] | None = None
        if hotwords is not None:
            is_greedy = not searches or options.beam_size == 1
            writer = preferring = HotwordWriter(writer, hotwords, len(begin), ids.end, is_greedy=is_greedy)
            find_gains = None if is_greedy else lambda: preferring.gains
        if searches:
            settings = BeamSettings(
                ids.end, longest, options.beam_size, options.length_penalty, early_stopping=options.early_stopping
            )
            found = [best[0] for best in beam_search(writer, begin, settings, find_gains)]
            return found if hotwords is None or find_gains is None else [_without_gains(one, hotwords) for one in found]
        return write(writer, begin, SamplingSettings(longest, temperature=temperature, stop_ids=(ids.end,)), keys)


def _without_gains(found: Hypothesis, hotwords: Hotwords) -> Hypothesis:
    """Return a hypothesis with its log-probability by the model alone."""
    gained = hotwords.score(found.tokens, has_ended=found.ended)
    return replace(found, log_probability=found.log_probability - gained)


def require_decoding(vocabulary: Vocabulary, options: AsrDecodingConfig) -> AsrDecodingConfig:
    """Return the options with the code by which a Whisper with this vocabulary knows their language.

    Raises UserError if it can't transcribe with these options.
    """
    known, key = vocabulary.languages, "data.decoding"
    choice = LanguageChoice(options.language)
    if options.language not in (None, AUTO):
        choice = vocabulary.choose_language(options.language)
    asked = choice.code or options.language
    one = [ENGLISH] if vocabulary.is_whispers else []
    if asked not in (None, *([AUTO, *known] if known else one)):
        expected = f"expected {AUTO}, {', '.join(known)}" if known else "it knows one language only; leave it out"
        named = f"{options.language}{suggest_language(str(options.language), known)}"
        raise UserError(f"{key}.language: the base doesn't know {named}; {expected}")
    tell_choice(f"{key}.language", choice.remark)
    if options.task == "translate" and not known:
        raise UserError(f"{key}.task: the base can't translate: it knows one language only")
    needs = {"timestamps": options.timestamps != "none", "long_form": options.long_form == "seek"}
    needs |= {"no_speech_threshold": options.no_speech_threshold is not None, "prompt": bool(options.prompt)}
    for name in needs:
        is_there = vocabulary.no_speech is not None if name == "no_speech_threshold" else bool(vocabulary.times)
        if needs[name] and not is_there:
            raise UserError(f"{key}.{name}: the base has no tokens for it; only OpenAI's Whispers have, and their like")
    return options if choice.code is None else options.model_copy(update={"language": choice.code})


def _complete_pieces(tokens: Sequence[int], times: range, seconds: float) -> list[Piece]:
    """The segments of a window's tokens, with the last one where it isn't complete; none is beyond its ``seconds``."""
    pieces, end = split_segments(tokens, times, seconds)
    first = pieces[-1].last - 1
    if end is not None and any(token not in times for token in tokens[first:]):
        pieces[-1] = pieces[-1]._replace(last=first)
        pieces.append(Piece(first, len(tokens), (tokens[first] - times.start) * SECONDS_OF_A_TIME, seconds))
    return [Piece(first, last, min(start, seconds), min(end, seconds)) for first, last, start, end in pieces]


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """How many times smaller zlib makes tokens: a text that repeats itself becomes much smaller.

    >>> compression_ratio([5, 6] * 50, 300) > 5 > compression_ratio(range(100), 300)
    True
    """
    size = int(math.log2(vocab_size) / 8) + 1
    content = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(content) / len(zlib.compress(content))


class TranscriptWriter:
    """A model that is writing the transcripts of encoded audio (``vaak.nn.decoding.sampling.Writer``)."""

    def __init__(
        self,
        model: AsrModel,
        encoded: Encoded,
        vocabulary: Vocabulary,
        prompts: Tensor | None = None,
        rules: TimeRules | None = None,
        is_first: bool = True,
    ) -> None:
        """``prompts`` ``(row, token)``, on the CPU, are read first (default: that of training), but for the last token.

        With ``rules``, times are written. ``is_first`` is False where the text has begun in the prompts.
        """
        self.model, self.encoded, device = model, encoded, encoded.states.device
        self.rows = torch.arange(len(encoded.states))
        """The row that each hypothesis belongs to."""
        dynamic = import_transformers(PURPOSE, "asr")
        self.cache = dynamic.EncoderDecoderCache(dynamic.DynamicCache(), dynamic.DynamicCache())
        self.rules, self.written = rules, torch.empty(len(encoded.states), 0, dtype=torch.long, device=device)
        never = [one for one in vocabulary.ids.never if rules is None or one not in rules.times]
        self.never = send(torch.tensor(never, dtype=torch.long), device)
        self.never_first = send(torch.tensor(vocabulary.ids.never_first, dtype=torch.long), device)
        self.is_first = is_first
        if prompts is None:
            prompts = torch.tensor([vocabulary.ids.prompt]).expand(len(encoded.states), -1)
        # The prompt's last token is left for the search, which begins with it and asks for what follows.
        if prompts.shape[1] > 1:
            model.decode(send(prompts[:, :-1].contiguous(), device), encoded, self.cache)

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits = self.model.decode(tokens[:, None], self.encoded, self.cache)[:, -1]
        # In 32 bits at least: scores of a beam are sums over many tokens.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).index_fill(1, self.never, -torch.inf)
        if self.is_first:
            logits = logits.index_fill(1, self.never_first, -torch.inf)
        if self.rules is not None:
            if not self.is_first:
                self.written = torch.cat((self.written, tokens[:, None]), 1)
            logits = self.rules(logits, self.written)
        self.is_first = False
        return logits

    def select(self, rows: Tensor) -> None:
        own, rows = self.rows[rows], send(rows, self.encoded.states.device)
        # In a beam search, hypotheses are exchanged within their row, whose audio stays.
        if not torch.equal(own, self.rows):
            self.encoded = self.encoded.rows(rows)
            self._select_audio(rows, is_one=bool((own == own[0]).all()))
        self.rows, self.written = own, self.written[rows]
        self.cache.self_attention_cache.batch_select_indices(rows)

    def _select_audio(self, rows: Tensor, *, is_one: bool) -> None:
        """Keep the audio's keys and values of ``rows``; where they are of one recording, all hypotheses share them."""
        if not is_one:
            self.cache.cross_attention_cache.batch_select_indices(rows)
            return
        # A view: a step of the search reads the memory of one hypothesis, not as many times that.
        for layer in self.cache.cross_attention_cache.layers:
            layer.keys, layer.values = (
                one[rows[:1]].expand(len(rows), -1, -1, -1) for one in (layer.keys, layer.values)
            )

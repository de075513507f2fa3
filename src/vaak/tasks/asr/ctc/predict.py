"""Transcripts by a CTC model: the best class of each frame, collapsed, or a beam search, with an n-gram model of words.

audio ──cut at silences──▶ windows ──features──▶ encoder ──▶ log-probabilities ──search──▶ transcripts, in order

While an utterance comes, a Conformer that streams reads it chunk by chunk, and nothing of it is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vaak.audio.features.extractors import FeatureStream
from vaak.core.batch import read_together, send
from vaak.core.errors import UserError
from vaak.core.task import TunedOptions, TunedScore
from vaak.nn.config import ConformerConfig
from vaak.nn.conformer import ConformerStream
from vaak.nn.ctc import collapse
from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import CtcStream, search_rows
from vaak.nn.decoding.ctc_words import WordModel
from vaak.nn.decoding.sampling import without_dropout
from vaak.runs.folder.directory import list_candidate_places
from vaak.runs.open_run import open_run
from vaak.runs.use import Use
from vaak.scoring.word_errors import count_errors
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.ctc.data import FrameFeatures, padded_features
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.ctc.word_times import Frames, find_words
from vaak.tasks.asr.long_form import Window
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.transcripts import Segment
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.text.ngram import Ngram


@dataclass(frozen=True)
class CtcTranscriber(Transcriber):
    """A CTC model with its features and vocabulary, and the search for transcripts.

    ``directory`` is that of its run, from where those that it names are looked for, too.
    """

    directory: Path = Path()

    def segments_of_windows(self, windows: list[Window]) -> list[list[Segment]]:
        if self.decoding.timestamps != "word":
            texts = self.texts_of_windows([window.features for window in windows])
            return [[Segment(one.start, one.end, text)] for one, text in zip(windows, texts, strict=True)]
        with torch.inference_mode():
            outputs = self._outputs([window.features for window in windows])
            found = zip(windows, self.search(outputs), self._log_probs(outputs), strict=True)
        return [[self.make_segment(*one)] for one in found]

    @property
    def frame_features(self) -> FrameFeatures:
        """The features, which say how many of the encoder's frames there are."""
        return cast("FrameFeatures", self.features)

    @property
    def chunk_frames(self) -> int | None:
        """The encoder's frames in a chunk of ``decoding.chunk``; None where audio is read as a whole.

        Raises UserError where the model doesn't stream, or a chunk isn't a number of frames.
        """
        chunk, config = self.decoding.chunk, getattr(self.model, "config", None)
        if chunk is None:
            return None
        if not (isinstance(config, ConformerConfig) and config.streaming):
            raise UserError(
                "data.decoding.chunk: this model reads audio as a whole; one streams that was trained with "
                "model.conformer.streaming: true"
            )
        shift = self.frame_features.encoded_shift
        number = round(chunk / shift)
        if number < 1 or abs(number * shift - chunk) > 1e-6:
            raise UserError(f"data.decoding.chunk: {chunk:g} s isn't a multiple of {shift:g} s, the encoder's step")
        return number

    def stream(self) -> CtcTextStream | None:
        chunk = self.chunk_frames
        return None if chunk is None else CtcTextStream(self, chunk)

    def make_segment(self, window: Window, ids: list[int], log_probs: np.ndarray) -> Segment:
        """The transcript of a window; with the times of its words, and how sure the model is, where they are asked."""
        if self.decoding.timestamps != "word":
            return Segment(window.start, window.end, self.vocabulary.decode(ids))
        shift = self.frame_features.encoded_shift
        frames = Frames(log_probs, window.begin + shift * np.arange(len(log_probs)), window.end)
        pieces = decode_tokens(self.vocabulary)
        words, confidences = find_words(frames, ids, pieces, self.vocabulary.ids.pad, shift)
        return Segment(window.start, window.end, self.vocabulary.decode(ids), words, None, confidences)

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        with torch.inference_mode():
            return self.decode_texts(self._outputs(features))

    def _outputs(self, features: Sequence[np.ndarray]) -> CtcOutputs:
        model = cast("CtcModel", self.model)
        device = next(model.parameters()).device
        rows, lengths = (send(one, device) for one in padded_features(features))
        chunk = {} if self.chunk_frames is None else {"chunk": self.chunk_frames}
        with without_dropout(model):
            outputs: CtcOutputs = model(rows, lengths, **chunk)
        return outputs

    def log_probs(self, features: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Log-probabilities ``(frame, vocab)`` for each of ``features``, at once; -inf for forbidden tokens."""
        with torch.inference_mode():
            return self._log_probs(self._outputs(features))

    def _log_probs(self, outputs: CtcOutputs) -> list[np.ndarray]:
        rows, lengths = read_together(self.sayable(outputs.log_probs()), outputs.lengths)
        return [row[:length].numpy() for row, length in zip(rows, lengths.tolist(), strict=True)]

    def decode_texts(self, encoded: Any) -> list[str]:
        """Return the transcript of each row of a model's outputs."""
        with torch.inference_mode():
            return [self.vocabulary.decode(ids) for ids in self.search(encoded)]

    def search(self, outputs: CtcOutputs) -> list[list[int]]:
        """Return the tokens of each row."""
        if self.decoding.method == "beam":
            return search_best(self._log_probs(outputs), self.beam)
        best, lengths = read_together(self.sayable(outputs.logits).argmax(-1), outputs.lengths)
        return [
            collapse(classes[:length], self.vocabulary.ids.pad)
            for classes, length in zip(best.tolist(), lengths.tolist(), strict=True)
        ]

    @property
    def beam(self) -> CtcBeam:
        """How a beam search is made. Raises DataError or UserError for a language model that can't be read."""
        options, ids = self.decoding, self.vocabulary.ids
        words: WordModel | None = None if options.ngram is None else read_ngram(options.ngram)
        if options.lm is not None:
            words = open_words(find_run(options.lm, self.directory), self.device.type)
        pieces, weights = decode_tokens(self.vocabulary), (options.alpha, options.beta)
        pruning = options.token_min_logp, options.beam_threshold
        return CtcBeam(pieces, ids.pad, options.beam_size, words, *weights, self.hotwords, *pruning)

    def sayable(self, scores: Tensor) -> Tensor:
        """Return scores ``(..., vocab)`` with -inf for tokens that no transcript has."""
        never = send(torch.tensor(self.vocabulary.ids.never, dtype=torch.long), scores.device)
        return scores.index_fill(-1, never, -torch.inf)


UNFINISHED = "\ufffd"
"""The sign for bytes that are a part of a character."""


class CtcTextStream:
    """Reads an utterance; its text so far only grows, until it is over."""

    def __init__(self, transcriber: CtcTranscriber, chunk: int) -> None:
        """``chunk`` is a number of the encoder's frames."""
        self.transcriber = transcriber
        self.model = cast("CtcModel", transcriber.model)
        self._features = FeatureStream(transcriber.frame_features.extract)
        self._encoder = ConformerStream(self.model.encoder, chunk)
        self._search = CtcStream(transcriber.beam) if transcriber.decoding.method == "beam" else None
        self.ids = list[int]()
        self._last_class, self._text = transcriber.vocabulary.ids.pad, ""
        self._keeps = transcriber.decoding.timestamps == "word"
        self._log_probs = list[np.ndarray]()
        self._has_frames = False

    def read(self, samples: np.ndarray, *, is_last: bool) -> str:
        """Return the text after further samples ``(time,)``; the final one where they are the last."""
        rows = self._features.read(samples, is_last=is_last)
        if is_last and not len(rows) and not self._has_frames:
            # As of a whole recording that is shorter than a frame.
            rows = np.zeros((1, self._features.features.dims), np.float32)
        self._has_frames = self._has_frames or len(rows) > 0
        log_probs = self.log_probs(rows, is_last=is_last)
        if len(log_probs) or is_last:
            # Most blocks of samples complete no chunk.
            self._search_on(log_probs, is_last=is_last)
            self._text = self.transcriber.vocabulary.decode(self.ids)
        return self._text if is_last else self._text.rstrip(UNFINISHED)

    @torch.inference_mode()
    def log_probs(self, features: np.ndarray, *, is_last: bool) -> np.ndarray:
        """Return the log-probabilities ``(frame, vocab)`` of the chunks that ``features`` ``(frame, bin)`` complete."""
        model, device = self.model, self.transcriber.device
        rows = torch.from_numpy(features)[None].to(device)
        lengths = torch.tensor([rows.shape[1]], device=device)
        with without_dropout(model):
            states = self._encoder.read(model.normalise(rows, lengths), is_last=is_last)
            found = model.project(states).float().log_softmax(-1)
        return self.transcriber.sayable(found)[0].cpu().numpy()

    def _search_on(self, log_probs: np.ndarray, *, is_last: bool) -> None:
        if self._keeps:
            self._log_probs.append(log_probs)
        if self._search is None:
            pad = self.transcriber.vocabulary.ids.pad
            classes = [self._last_class, *log_probs.argmax(-1).tolist()]
            # The token of the class before is there already.
            self.ids += collapse(classes, pad)[int(self._last_class != pad) :]
            self._last_class = classes[-1]
            return
        agreed = self._search.read(log_probs)
        self.ids = list(self._search.finish() if is_last else agreed)

    def segment(self, window: Window) -> Segment:
        """Return the final text as a segment, with the times of words where these are asked for."""
        return self.transcriber.make_segment(window, self.ids, np.concatenate(self._log_probs or [np.zeros((0, 1))]))


def search_best(log_probs: Sequence[np.ndarray], beam: CtcBeam) -> list[list[int]]:
    """Return the tokens that a search finds in each row of log-probabilities ``(frame, vocab)``."""
    # Rows of about one length end together; which rows those are changes no text.
    order = sorted(range(len(log_probs)), key=lambda row: len(log_probs[row]))
    found: dict[int, list[int]] = {}
    for first in range(0, len(order), ROWS_TOGETHER):
        some = order[first : first + ROWS_TOGETHER]
        texts = search_rows([log_probs[row] for row in some], beam)
        found |= {row: list(best[0][1]) for row, best in zip(some, texts, strict=True)}
    return [found[row] for row in range(len(order))]


ROWS_TOGETHER = 32
"""Rows that are searched together."""
ALPHAS, BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0)
MOST_ROUNDS = 4


@dataclass(frozen=True)
class Weighed:
    """The weights that were found for a language model, and the word error rate of utterances before and after."""

    decoding: AsrDecodingConfig
    utterances: int
    before: float
    after: float

    def to_options(self) -> TunedOptions:
        """Return the weights as options to keep with the run."""
        options = self.decoding.model_dump(mode="json")
        said = [(f"WER {100 * rate:.2f} %", rate) for rate in (self.before, self.after)]
        before, after = (TunedScore(short, short, {"wer": rate}) for short, rate in said)
        return TunedOptions("data.decoding", options, self.utterances, "utterances", before, after)


def weigh(
    transcriber: CtcTranscriber,
    log_probs: Sequence[np.ndarray],
    texts: Sequence[str],
    normalise: Callable[[str], str],
) -> Weighed:
    """Return the ``alpha`` and ``beta`` with the lowest word error rate on these ``texts``, among those tried.

    Each is chosen from ALPHAS or BETAS with the other held, in turn, until neither changes; of equal ones, the first.
    """
    beam, decode = transcriber.beam, transcriber.vocabulary.decode
    references = [normalise(text) for text in texts]

    @cache
    def rate(alpha: float, beta: float) -> float:
        search = replace(beam, alpha=alpha, beta=beta)
        found = (normalise(decode(ids)) for ids in search_best(log_probs, search))
        counts = [count_errors(*pair) for pair in zip(references, found, strict=True)]
        return sum(one.word_errors for one in counts) / max(1, sum(one.words for one in counts))

    start = best = (beam.alpha, beam.beta)
    for _ in range(MOST_ROUNDS):
        before = best
        # min keeps the first of equal pairs, which is the present one: it moves only for fewer errors, so the search
        # ends.
        best = min([best, *((alpha, best[1]) for alpha in ALPHAS)], key=lambda pair: rate(*pair))
        best = min([best, *((best[0], beta) for beta in BETAS)], key=lambda pair: rate(*pair))
        if best == before:
            break
    found: dict[str, Any] = {"method": "beam", "alpha": best[0], "beta": best[1]}
    if transcriber.decoding.ngram is not None:
        # It is read from other folders, too.
        found["ngram"] = str(Path(transcriber.decoding.ngram).resolve())
    if transcriber.decoding.lm is not None:
        found["lm"] = str(find_run(transcriber.decoding.lm, transcriber.directory).resolve())
    decoding = transcriber.decoding.model_copy(update=found)
    return Weighed(decoding, len(texts), rate(*start), rate(*best))


def find_run(name: str, directory: Path) -> Path:
    """Return the run of a language model that the run in ``directory`` names. Raises UserError where there is none."""
    places = list_candidate_places(Path(name).expanduser(), directory)
    run = next((place for place in places if place.exists()), None)
    if run is None:
        looked = ", ".join(str(place.absolute()) for place in places)
        raise UserError(f"data.decoding.lm: no run {name}; looked for {looked}")
    return run


@lru_cache(maxsize=1)
def open_words(run: Path, device: str) -> WordModel:
    """Return the language model of a run; the last one is kept. Raises UserError for a run of another task."""
    opened = open_run(run, device=device, use=Use("data.decoding.lm"))
    words: WordModel = opened.task.words(opened.model)
    return words


read_ngram = lru_cache(maxsize=1)(Ngram)
"""The n-gram model of a file; the last one is kept."""


@lru_cache(maxsize=1)
def decode_tokens(vocabulary: Vocabulary) -> list[str]:
    """Return the text of each token as written after others, with the space before a word."""
    backend, silent = vocabulary.backend, {vocabulary.ids.pad, *vocabulary.ids.never}
    found = []
    for token in range(vocabulary.ids.size):
        alone = "" if token in silent else backend.decode([token])
        found.append("" if token in silent else backend.decode([token, token])[len(alone) :])
    return found

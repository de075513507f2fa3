"""A trained model in use: texts as audio, sentence by sentence, so that a text may be of any length; and an ONNX file.

text ──sentences──▶ symbols ──model──▶ mel spectrograms ──vocoder──▶ audio

The acoustic model as an ONNX file, symbols in, mel spectrogram out:

    acoustic.onnx     inputs: symbols (batch, symbol), symbol_lengths and speakers (batch,), int64; float32 numbers:
                      speed and, where the model has them, pitch (semitones), energy (factor) and temperature
                      outputs: mel (batch, frame, bin), frame_lengths (batch,), durations (batch, symbol)
    processor.json    the front end, with the number of each symbol; a pause comes before and after a sentence

Flow matching takes the number of steps and the method of ``data.speaking``. Its noise is drawn by onnxruntime, so the
check against PyTorch is without any: at temperature 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vaak.audio.audio_file import SpeechFile
from vaak.audio.features.pitch import interpolate_pitch
from vaak.audio.mel_config import MelConfig
from vaak.core.errors import DataError, UserError
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import whole_folder
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.onnx_file import OnnxModule, write_onnx
from vaak.tasks.batches import Batches, Done
from vaak.tasks.tts.config import SpeakingConfig
from vaak.tasks.tts.model import Controls, Text, TtsModel
from vaak.tasks.tts.spec import without_control
from vaak.tasks.vocoding import PitchedVocoder, griffin_lim, pitch_phases, trained_vocoder
from vaak.text.speech.abbreviations import BEFORE_NUMBERS, TITLES
from vaak.text.speech.dates_and_times import SHORT_MONTHS
from vaak.text.speech.phonemes.pronunciation import read_lexicon
from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor, Processed
from vaak.text.speech.ssml import MARKS, Manner, Marks, parse_spans
from vaak.text.speech.words import read_in_locale

MOST_WORDS = 60
"""The most words at once; a longer sentence is divided at its punctuation, or else anywhere between words."""

_END = re.compile(r"(?<=[.?!…;])\s+|(?<=[.?!…][\"')])\s+")
_ABBREVIATED = re.compile(rf"(?<![\w.])(?:[A-Za-z]|{'|'.join((*TITLES, *BEFORE_NUMBERS, *SHORT_MONTHS))})\.$")
_PHRASE_END = re.compile(r"(?<=[,:—)])\s+")


@dataclass(frozen=True)
class Sentence:
    """Audio ``(time,)`` of a sentence, float32 within ±1, with what it was made of."""

    text: str
    symbols: tuple[str, ...]
    durations: np.ndarray
    """``(symbol,)``: frames."""
    pitch: np.ndarray
    """``(symbol,)``: F0 in Hz, 0 where there is none or the model predicts none."""
    mel: np.ndarray
    """``(frame, bin)``."""
    samples: np.ndarray
    silence: float | None = None
    """Seconds of silence before it; None: the pause between sentences."""

    def to_json(self, frame_shift: float) -> dict[str, Any]:
        """Return the spoken words and their prosody, without the audio; a frame has ``frame_shift`` seconds."""
        pitch = [round(float(value), 1) for value in self.pitch]
        seconds = [round(int(frames) * frame_shift, 4) for frames in self.durations]
        return {"text": self.text, "symbols": list(self.symbols), "durations": seconds, "pitch": pitch}


@dataclass(frozen=True)
class Unspeakable:
    """A part of a text that was not spoken, and why; the rest of its sentence was, or was not."""

    message: str
    rest_is_spoken: bool


@dataclass(frozen=True)
class Speech:
    """A text as audio ``(time,)``, float32 within ±1."""

    text: str
    samples: np.ndarray
    sampling_rate: int
    frame_shift: float
    """Seconds between frames of spectrograms."""
    sentences: tuple[Sentence, ...] = field(compare=False)
    seconds_taken: float = field(compare=False)
    unspeakable: tuple[Unspeakable, ...] = ()
    unspoken: tuple[str, ...] = ()
    """Symbols that no rule reads."""

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds taken for each second of audio."""
        return self.seconds_taken / self.duration if len(self.samples) else 0.0

    def __str__(self) -> str:
        missing = "".join(f"; not spoken: {one.message}" for one in self.unspeakable)
        return f"{self.text} ({self.duration:.1f} s, real-time factor {self.real_time_factor:.2f}{missing})"

    def to_json(self) -> dict[str, Any]:
        """Return the spoken words and their prosody, without the audio; durations in seconds, pitch in Hz."""
        return {
            "text": self.text,
            "duration": self.duration,
            "sampling_rate": self.sampling_rate,
            "real_time_factor": round(self.real_time_factor, 5),
            "sentences": [sentence.to_json(self.frame_shift) for sentence in self.sentences],
            "not_spoken": [one.message for one in self.unspeakable],
        }


@dataclass(eq=False)
class SpokenText:
    """A text that is spoken, ``where`` it comes from, and what of it can't be."""

    text: str
    where: str = ""
    unspeakable: list[Unspeakable] = field(default_factory=list)
    unspoken: list[str] = field(default_factory=list)
    """Symbols that no rule reads."""


class Part(NamedTuple):
    """A text that is spoken at once, with its manner and the silence before it, as of a ``Sentence``.

    ``tail`` is how many seconds of silence end the text.
    """

    processed: Processed
    text: str
    manner: Manner = Manner()
    silence: float | None = None
    tail: float = 0.0


class Speaker:
    """A model with its front end, from texts to symbols, and its vocoder, from spectrograms to audio."""

    def __init__(
        self,
        model: TtsModel,
        processor: PhonemeProcessor,
        speakers: tuple[str, ...],
        mel: MelConfig,
        options: SpeakingConfig,
        directory: Path,
    ) -> None:
        """``speakers`` are the model's, of whom ``options`` choose one; ``mel`` describes its spectrograms.

        ``directory`` is that of the model's run, near which a vocoder is looked for.

        ``processor`` is the front end that it was trained with. Raises UserError for an unknown speaker, and for
        ``options`` that the model can't follow, a vocoder of other spectrograms among them; DataError for a lexicon
        that can't be read.
        """
        self.model, self.processor, self.options = model, processor, options
        self.mel, self.sampling_rate, self.speakers = mel, mel.sampling_rate, speakers
        name = options.speaker if options.speaker is not None else speakers[0]
        remedy = f"the model has {list_names(speakers)}"
        require_known([name], speakers, "unknown speaker", remedy=remedy, error=UserError)
        self.number = speakers.index(name)
        for option, message in without_control(model.config, options):
            raise UserError(f"data.speaking.{option}: {message}")
        self.controls = Controls(**options.model_dump(include=set(Controls._fields)))
        self.lexicon = {} if options.lexicon is None else read_lexicon(Path(options.lexicon).expanduser())
        self.pitched: PitchedVocoder | None = None
        if options.vocoder is not None:
            self.vocoder = trained_vocoder(options.vocoder, directory, mel, next(model.parameters()).device)
        else:
            self.vocoder = griffin_lim(mel, options.num_iterations)
            if options.phases == "pitch":
                self.pitched = pitch_phases(mel)

    def speech(self, text: str) -> Speech:
        """Return the whole text as audio. Raises DataError as ``sentences`` does."""
        [found] = self.speeches([text])
        return found

    def speeches(self, texts: Iterable[str], batch_size: int | None = None) -> Iterator[Speech]:
        """Yield each text as audio; sentences of several are spoken together. Raises DataError as ``speech`` does."""
        sentences: list[Sentence] = []
        for one in self.sentences(map(SpokenText, texts), batch_size):
            if not isinstance(one, Done):
                sentences.append(one[1])
                continue
            if one.error is not None:
                raise one.error
            pieces: list[np.ndarray] = []
            # The same writer as for files, so pauses between sentences are the same.
            whole = SpeechFile(SimpleNamespace(write=pieces.append), self.sampling_rate, self.options.pause)
            for sentence in sentences:
                whole.append(sentence.samples, sentence.silence)
            samples = np.concatenate(pieces)
            made = Speech(
                one.source.text, samples, self.sampling_rate, self.mel.frame_shift, tuple(sentences), one.seconds
            )
            yield replace(made, unspeakable=tuple(one.source.unspeakable), unspoken=tuple(one.source.unspoken))
            sentences = []

    def sentences(
        self, texts: Iterable[SpokenText], batch_size: int | None = None
    ) -> Iterator[tuple[SpokenText, Sentence] | Done[SpokenText]]:
        """Return the sentences of each text in their order, then its end; those of several texts are spoken together.

        There are ``batch_size`` sentences in a batch; with None, as many as memory allows. What can't be spoken is
        treated as ``on_unspeakable`` says, and added to the text's ``unspeakable``. The end of a text has the DataError
        where nothing of it can be spoken, or under ``error``.
        """
        batches = Batches(next(self.model.parameters()).device, batch_size)
        return batches.of_sources(texts, self.split_parts, lambda one: len(one.processed.ids), self.speak_parts)

    def split_parts(self, text: SpokenText) -> Iterator[Part]:
        """Yield the parts of a text, which may be SSML. Raises DataError if nothing of it can be spoken."""
        config = self.processor.config
        marks = Marks(self.lexicon, None if config.is_english else config.language)
        with read_in_locale(config.locale):
            spans = parse_spans(text.text, marks)
        # A break at the end of SSML is a span without text: it becomes the silence after the last part.
        tail = (spans.pop().silence or 0.0) if len(spans) > 1 and not spans[-1].text.strip() else 0.0
        nothing: DataError | None = None
        parts: list[Part] = []
        for span in spans:
            if span.manner.pitch and not self.model.config.pitch:
                raise DataError("SSML: the model predicts no pitch; train with model.pitch: true, or leave pitch out")
            try:
                found = self._speakable(span.text, text, marks)
            except DataError as error:
                if self.options.on_unspeakable == "error" or len(spans) == 1:
                    raise
                nothing = error
                continue
            for number, one in enumerate(found):
                silence = None if number else span.silence
                parts.append(Part(one, marks.written(one.normalised), span.manner, silence))
        if not parts:
            raise nothing or DataError("there is nothing to speak in it")
        yield from parts[:-1]
        yield parts[-1]._replace(tail=tail)

    def _speakable(self, text: str, source: SpokenText, marks: Marks) -> list[Processed]:
        """Return each sentence of a text in symbols, without what can't be spoken, which its ``source`` gets."""
        try:
            return self._process_text(text, marks, source)
        except DataError as error:
            if self.options.on_unspeakable == "error":
                raise
            nothing = error
        # Usually all can be spoken. Where it can't, each sentence is tried alone, so that the others are still spoken.
        found: list[Processed] = []
        for sentence in unnormalised_sentences(text):
            try:
                found += self._process_text(sentence, marks, source)
            except DataError as error:
                rest = self._without_unknown(sentence, marks, source) if self.options.on_unspeakable == "drop" else []
                source.unspeakable.append(Unspeakable(str(error), rest_is_spoken=bool(rest)))
                found += rest
        if not found:
            raise nothing
        return found

    def _process_text(self, text: str, marks: Marks, source: SpokenText) -> list[Processed]:
        unspoken: list[str] = []
        plain = self.processor.normalise(text, marks.phonemes, unspoken)
        found = self.processor.process_all(divided(plain) or [text], marks.phonemes)
        source.unspoken += unspoken
        return found

    def _without_unknown(self, sentence: str, marks: Marks, source: SpokenText) -> list[Processed]:
        """Return a sentence without the characters that can't be read; nothing if it can't be spoken even so."""
        try:
            return self._process_text(self.processor.without_unknown(sentence, marks.phonemes), marks, source)
        except DataError:
            return []

    def sentence(self, text: str, ids: tuple[int, ...], name: str | None = None) -> Sentence:
        """Symbols spoken at once; a pause comes before and after them, as in training.

        The speaker is the one called ``name``, if the model has such a speaker, or else that of the options.
        """
        number = self.speakers.index(name) if name in self.speakers else self.number
        [spoken] = self._together([(text, ids)], number, self.controls)
        return spoken

    def speak_parts(self, parts: list[Part]) -> list[Sentence]:
        """Speak together what has the same speed and pitch; volume and silence are added to its audio."""
        spoken: dict[int, Sentence] = {}
        for speed, pitch in dict.fromkeys((one.manner.speed, one.manner.pitch) for one in parts):
            places = [place for place, one in enumerate(parts) if one.manner[:2] == (speed, pitch)]
            controls = self.controls._replace(speed=self.options.speed * speed, pitch=self.options.pitch + pitch)
            texts = [(parts[place].text, parts[place].processed.ids) for place in places]
            spoken |= dict(zip(places, self._together(texts, self.number, controls), strict=True))
        return [self._finished(spoken[place], one) for place, one in enumerate(parts)]

    def _finished(self, sentence: Sentence, part: Part) -> Sentence:
        samples = sentence.samples
        if part.manner.volume:
            samples = (samples * np.float32(10 ** (part.manner.volume / 20))).clip(-1, 1)
        if part.tail:
            samples = np.pad(samples, (0, round(part.tail * self.sampling_rate)))
        return replace(sentence, samples=samples, silence=part.silence)

    def _together(
        self, sentences: list[tuple[str, tuple[int, ...]]], speaker: int, controls: Controls
    ) -> list[Sentence]:
        """Texts with their symbols as audio, all computed at once."""
        model, pause = self.model, self.processor.pause_id
        device = next(model.parameters()).device
        # With a pause at both ends, as in training.
        rows = [torch.tensor([pause, *ids, pause]) for _, ids in sentences]
        symbols = pad_sequence(rows, batch_first=True, padding_value=self.processor.pad_id).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        with without_dropout(model):
            spoken = model.speak(Text(symbols, lengths, torch.full_like(lengths, speaker)), controls)
        plan, all_frames = spoken.plan, spoken.plan.frame_lengths.tolist()
        mels = [mel[:frames] for mel, frames in zip(spoken.mel.float().cpu(), all_frames, strict=True)]
        durations, pitch = plan.durations.cpu().numpy(), plan.pitch.float().cpu().numpy()
        if self.pitched is None:
            audio = self.vocoder(mels)
        else:
            audio = self.pitched(mels, [interpolate_pitch(*one) for one in zip(pitch, durations, strict=True)])
        return [
            Sentence(
                text,
                tuple(self.processor.decode(row.tolist())),
                durations[number, : len(row)],
                pitch[number, : len(row)],
                mel.numpy(),
                # A vocoder may go beyond ±1, and audio files can't.
                samples.numpy().clip(-1, 1),
            )
            for number, ((text, _), row, mel, samples) in enumerate(zip(sentences, rows, mels, audio, strict=True))
        ]


def divided(text: str) -> list[str]:
    """Return a normalised text in parts that are spoken at once: sentences, or pieces of very long ones.

    >>> divided('He came. "Who?" she asked; and left.')
    ['He came.', '"Who?"', 'she asked;', 'and left.']
    """
    parts = [piece for sentence in _END.split(text) for piece in _pieces(sentence)]
    return [part for part in parts if any(sign.isalnum() or sign in MARKS for sign in part)]


def unnormalised_sentences(text: str) -> list[str]:
    """Return the sentences of a written text; no sentence ends with an initial or an abbreviation.

    >>> unnormalised_sentences("Dr. J. Roe came. He left at 5 p.m. on Oct. 3! Why?")
    ['Dr. J. Roe came.', 'He left at 5 p.m. on Oct. 3!', 'Why?']
    """
    found: list[str] = []
    for part in _END.split(text):
        if found and (_ABBREVIATED.search(found[-1]) or part[:1].islower()):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def _pieces(sentence: str) -> Iterator[str]:
    """Yield a sentence, or a very long one in parts."""
    if len(sentence.split()) <= MOST_WORDS:
        yield sentence
        return
    waiting: list[str] = []
    for phrase in _PHRASE_END.split(sentence):
        words = phrase.split()
        if waiting and len(waiting) + len(words) > MOST_WORDS:
            yield " ".join(waiting)
            waiting = []
        waiting += words
        # A single phrase may be too long as well: it is cut anywhere.
        while len(waiting) > MOST_WORDS:
            yield " ".join(waiting[:MOST_WORDS])
            waiting = waiting[MOST_WORDS:]
    if waiting:
        yield " ".join(waiting)


_OUTPUTS = ("mel", "frame_lengths", "durations")
_AXES = {"symbols": {0: "batch", 1: "symbol"}, "symbol_lengths": {0: "batch"}, "speakers": {0: "batch"}}


class AcousticFunction(nn.Module):
    """The model as a function of tensors: a text, then the controls that it has, in order."""

    def __init__(self, model: TtsModel, speaking: SpeakingConfig) -> None:
        super().__init__()
        self.model = model
        self.usual = Controls(num_steps=speaking.num_steps, method=speaking.method)
        has = {"pitch": model.config.pitch, "energy": model.config.energy, "temperature": model.config.matches_flows}
        self.controls = ("speed", *(name for name, there in has.items() if there))

    def forward(self, symbols: Tensor, lengths: Tensor, speakers: Tensor, *controls: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = dict(zip(self.controls, controls, strict=True))
        given = self.usual._replace(**options)
        plan = self.model.plan(Text(symbols, lengths, speakers), given)
        noise = torch.randn_like(self.model.mel(plan.frames)) if self.model.config.matches_flows else None
        spoken = self.model.spectrogram(plan, noise, given)
        return spoken.mel, spoken.plan.frame_lengths, spoken.plan.durations


def export_acoustic(
    model: TtsModel, processor: PhonemeProcessor, mel: MelConfig, speaking: SpeakingConfig, folder: Path
) -> float:
    """Write ``folder``; return the largest difference between its outputs and those of ``model``.

    ``processor`` is the front end of the model, ``mel`` describes its spectrograms, ``speaking`` has the steps of flow
    matching. Raises UserError for a folder that has something in it, and if the file can't be made or is wrong.
    """
    speech = AcousticFunction(model, speaking)

    def inputs(*lengths: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(lengths))
        symbols = torch.randint(1, processor.num_symbols, (len(lengths), max(lengths)), generator=generator)
        found = {
            "symbols": symbols,
            "symbol_lengths": torch.tensor(lengths),
            "speakers": torch.zeros(len(lengths)).long(),
        }
        # Not the neutral values, which would hide a control that is lost; no noise, which two programs draw apart.
        usual = {"speed": 1.25, "pitch": 2.0, "energy": 1.5, "temperature": 0.0}
        return found | {name: torch.tensor(usual[name]) for name in speech.controls}

    metadata = {"sampling_rate": str(mel.sampling_rate), "mel": mel.model_dump_json()}
    with whole_folder(folder) as made:
        processor.save(made / PROCESSOR_FILE)
        exported = OnnxModule(speech, inputs(9, 6), _AXES, _OUTPUTS, [inputs(3), inputs(25, 2, 14)], metadata)
        return write_onnx(made / "acoustic.onnx", exported)

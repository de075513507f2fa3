"""The acoustic model: symbols in, a mel spectrogram out, all frames at once.

    symbols ──embedding (+ speaker)──▶ encoder ──┬──▶ duration predictor ──▶ log(1 + frames) of each symbol
                                                 └──▶ pitch and energy, if any ──▶ length regulator ──▶ decoder ──▶ mel
                                                                                         ▲                 └──────▶ stop
    training: durations of an alignment ─────────────────────────────────────────────────┤
              or of the one that the model learns                                        ┘
    decoder_type flow_matching: the regulator's frames are the condition of a field that turns noise into mel, and give
              its mean without the field, as a help in training; without a stop

Sources: Ren et al. 2021, "FastSpeech 2" (encoder, predictors, regulator, decoder); Badlani et al. 2021, "One TTS
Alignment To Rule Them All" (learned durations); Mehta et al. 2024, "Matcha-TTS" (flow matching). Differs: blocks are
those of the model factory; a stop head, as the English TTS trainer has it, says where in the last pause speech ends;
the field reads the encoder's vectors, not only the mean of the spectrogram.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from vaak.core.batch import Term
from vaak.core.random_keys import Purpose, draw_key
from vaak.nn.initialisation import initialise
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.norms import MOST_CAST, cast_weights, project
from vaak.nn.own_network import make_stack
from vaak.nn.speech.alignment import Aligner, beta_binomial_prior, monotonic_alignment
from vaak.nn.speech.flow_matching import Draws, TransformerField, UNetField, flow_matching_loss, integrate, row_draws
from vaak.nn.speech.masks import exact, length_mask
from vaak.nn.speech.variance_adaptor import (
    SymbolPredictor,
    VarianceAdaptor,
    number_symbols,
    regulate,
    to_frames,
    whole_durations,
)
from vaak.tasks.tts.config import TtsModelConfig
from vaak.tasks.tts.data import Normalisation


@dataclass(frozen=True)
class Inventory:
    """The sizes that data decide."""

    num_symbols: int
    pad_id: int
    num_speakers: int


class Text(NamedTuple):
    """Texts as ``symbols`` ``(row, symbol)``, their ``lengths`` and ``speakers`` ``(row,)``."""

    symbols: Tensor
    lengths: Tensor
    speakers: Tensor

    @property
    def mask(self) -> Tensor:
        """``(row, symbol)``, True where it is real."""
        return length_mask(self.lengths, self.symbols.shape[1])


class Recording(NamedTuple):
    """How the texts of a batch were spoken, as training knows it."""

    mel: Tensor
    """``(row, frame, bin)``, normalised."""
    lengths: Tensor
    """``(row,)``, in frames."""
    durations: Tensor | None = None
    """``(row, symbol)``, in frames; None if they are learned."""
    prosody: Tensor | None = None
    """``(row, frame, 2)``: energy and F0 in Hz, for a model that predicts them."""
    draws: Draws | None = None
    """For flow matching."""


class Controls(NamedTuple):
    """How to speak: the options of ``SpeakingConfig`` by their names."""

    speed: float | Tensor = 1.0
    pitch: float | Tensor = 0.0
    energy: float | Tensor = 1.0
    num_steps: int = 10
    method: Literal["euler", "midpoint"] = "euler"
    temperature: float | Tensor = 0.667


@dataclass(frozen=True)
class TtsOutputs:
    """The model's outputs for a batch; mel is normalised."""

    mel: Tensor
    """``(row, frame, bin)``; of flow matching, the mean that the frames give without the field."""
    stop: Tensor | None
    """``(row, frame)``: logits of the end of speech."""
    log_durations: Tensor
    """``(row, symbol)``: predictions of log(1 + frames)."""
    durations: Tensor
    """``(row, symbol)``: the frames of each symbol that the decoder has read."""
    symbol_mask: Tensor
    frame_mask: Tensor
    """``(row, symbol)`` and ``(row, frame)``: True where they are real."""
    terms: dict[str, Term]
    """The losses of pitch, voicing and energy, and of flow matching."""
    alignment: Tensor | None = None
    """``(row, frame, symbol)``: log-likelihoods of frames, from which durations are learned."""


@dataclass(frozen=True)
class SpeechPlan:
    """How texts will be spoken: the frames that the decoder reads, ``(row, frame, width)``, and what decided them."""

    frames: Tensor
    frame_lengths: Tensor
    durations: Tensor
    """``(row, symbol)``, in frames."""
    pitch: Tensor
    """``(row, symbol)``: F0 in Hz, 0 where it is unvoiced or not predicted."""
    symbol_lengths: Tensor
    """``(row,)``; the last symbol is a pause."""

    @property
    def mask(self) -> Tensor:
        """``(row, frame)``, True where it is real."""
        return length_mask(self.frame_lengths, self.frames.shape[1])


@dataclass(frozen=True)
class SpokenSymbols:
    """Mel spectrograms of texts ``(row, frame, bin)``, as in the data, and the plan that they follow.

    What comes after a row's ``frame_lengths`` doesn't belong to it.
    """

    mel: Tensor
    plan: SpeechPlan


class TtsModel(nn.Module):
    """Predicts the mel spectrogram of a text."""

    mel_mean: Tensor
    mel_deviation: Tensor

    def __init__(self, config: TtsModelConfig, inventory: Inventory, normalisation: Normalisation) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.config = config
        width, num_bins = config.encoder.d_model, len(normalisation.mel_mean)
        predictor = config.duration_predictor.model_dump()
        self.embedding = nn.Embedding(inventory.num_symbols, width, padding_idx=inventory.pad_id)
        several = config.speaker_embedding and inventory.num_speakers > 1
        self.speakers = nn.Embedding(inventory.num_speakers, width) if several else None
        self.dropout = nn.Dropout(config.encoder.dropout)
        self.encoder = make_stack(config.encoder, causal=False, section="model.encoder")
        self.duration_predictor = SymbolPredictor(width, **predictor)
        self.adaptor = None
        if config.has_prosody:
            pitch = normalisation.pitch if config.pitch else None
            self.adaptor = VarianceAdaptor(width, pitch, normalisation.energy if config.energy else None, predictor)
        self.aligner = Aligner(width, num_bins) if config.durations == "learned" else None
        frame_width = width if config.matches_flows else config.decoder.d_model
        self.bridge = nn.Identity() if width == frame_width else nn.Linear(width, frame_width)
        self.decoder = make_decoder(config, num_bins)
        self.mel = nn.Linear(frame_width, num_bins)
        # a field has no say on where it ends: noise has the length of the plan
        self.stop = None if config.matches_flows else nn.Linear(frame_width, 1)
        self.register_buffer("mel_mean", torch.tensor(normalisation.mel_mean))
        self.register_buffer("mel_deviation", torch.tensor(normalisation.mel_deviation))
        initialise(self)

    def forward(
        self, text: Text, recording: Recording, norms: tuple[SquaredNorms, SquaredNorms] | None = None
    ) -> TtsOutputs:
        """Return the outputs for training, with the true durations or, without any, those of the learned alignment.

        ``norms`` tally what enters feature maps, of symbols and of frames.
        """
        parts: list[nn.Module | None] = [
            self.encoder,
            self.duration_predictor,
            self.adaptor,
            self.bridge,
            self.mel,
            self.stop,
        ]
        # a field looks at the type of its weights
        known = [one for one in (*parts, None if self.config.matches_flows else self.decoder) if one is not None]
        with cast_weights(*known, at_most=MOST_CAST):
            return self._compute(text, recording, norms)

    def _compute(self, text: Text, recording: Recording, norms: tuple[SquaredNorms, SquaredNorms] | None) -> TtsOutputs:
        masks = symbol_mask, frame_mask = text.mask, length_mask(recording.lengths, recording.mel.shape[1])
        embedded = self.embedded(text)
        alignment, durations = None, recording.durations
        if self.aligner is not None:
            padded = frame_mask.shape[1], symbol_mask.shape[1]
            # symbols are spoken in order and about evenly: without this, alignments take long to begin
            prior = beta_binomial_prior(recording.lengths, text.lengths, padded=padded)
            alignment = self.aligner(embedded, recording.mel, symbol_mask, frame_mask, prior.to(recording.mel.dtype))
            # the path is what the decoder reads; the aligner itself learns by all paths (the task's alignment loss)
            durations = monotonic_alignment(alignment, recording.lengths, text.lengths)
        assert durations is not None
        of_symbols, of_frames = norms or (None, None)
        encoded = self.encoder(self.dropout(embedded), mask=symbol_mask, norms=of_symbols and (of_symbols, of_symbols))
        log_durations = self.duration_predictor(encoded, symbol_mask)[..., 0]
        terms: dict[str, Term] = {}
        symbols = number_symbols(durations, frame_mask.shape[1])
        if self.adaptor is not None:
            assert recording.prosody is not None, "a model of pitch and energy learns from those of recordings"
            # in training the decoder reads true pitch and energy, so that it learns before the predictors do
            targets = self.adaptor.targets(recording.prosody, durations, frame_mask, symbols)
            encoded, _, terms = self.adaptor(encoded, symbol_mask, targets)
        frames = regulate(self.bridge(encoded), durations, frame_mask.shape[1], symbols, frame_mask)
        if self.stop is None:
            assert recording.draws is not None, "flow matching learns from noise"
            terms["flow"] = flow_matching_loss(
                lambda x, times: self.decoder(x, times, frames, frame_mask, of_frames),
                recording.mel,
                recording.draws,
                frame_mask,
                self.config.flow_matching.sigma_min,
            )
            return TtsOutputs(self.mel(frames), None, log_durations, durations, *masks, terms, alignment)
        decoded = self.decoder(frames, mask=frame_mask, norms=of_frames and (of_frames, of_frames))
        stop, mel = project(decoded, self.stop, self.mel)
        return TtsOutputs(mel, stop[..., 0], log_durations, durations, *masks, terms, alignment)

    def embedded(self, text: Text) -> Tensor:
        """``(row, symbol, width)``."""
        embedded: Tensor = self.embedding(text.symbols)
        return embedded if self.speakers is None else embedded + self.speakers(text.speakers)[:, None]

    def normalised(self, mel: Tensor) -> Tensor:
        """Return a mel spectrogram of the data, with mean 0 and deviation 1 in each bin."""
        return (mel - self.mel_mean) / self.mel_deviation

    @torch.inference_mode()
    def speak(self, text: Text, controls: Controls = Controls()) -> SpokenSymbols:  # noqa: B008 - it can't be changed
        """The mel spectrograms of texts. A row's noise, for flow matching, is a function of its symbols and speaker."""
        plan, noise = self.plan(text, controls), None
        if self.stop is None:
            rows = zip(text.symbols.tolist(), text.lengths.tolist(), text.speakers.tolist(), strict=True)
            # whatever else is in the batch, and whenever it is spoken, a text sounds the same
            keys = [draw_key(Purpose.SPEAK, speaker, *symbols[:length]) for symbols, length, speaker in rows]
            noise = row_draws(keys, plan.frame_lengths.tolist(), len(self.mel_mean)).noise.to(plan.frames)
        spoken = self.spectrogram(plan, noise, controls)
        longest = int(spoken.plan.frame_lengths.max())
        return SpokenSymbols(spoken.mel[:, :longest], replace(spoken.plan, frames=spoken.plan.frames[:, :longest]))

    def plan(self, text: Text, controls: Controls) -> SpeechPlan:
        """Durations, pitch and energy as predicted, changed as the ``controls`` say."""
        symbol_mask = text.mask
        encoded = self.encoder(self.embedded(text), mask=symbol_mask)
        predicted = to_frames(self.duration_predictor(encoded, symbol_mask)[..., 0])
        durations = whole_durations(predicted, symbol_mask, controls.speed)
        # Audio is what is between the centres of two frames, so there are two at least.
        durations[:, 0] += (2 - durations.sum(1)).clamp(min=0)
        frame_lengths = durations.sum(1)
        pitch = torch.zeros_like(predicted)
        if self.adaptor is not None:
            doublings = torch.as_tensor(controls.energy).log2()
            encoded, prosody, _ = self.adaptor(encoded, symbol_mask, None, controls.pitch / 12, doublings)
            pitch = self.adaptor.hertz(prosody)
        # int() would have an exporter take it for a constant; the check below says what it can't see in a number that
        # data decide.
        num_frames = cast("int", frame_lengths.max().item())
        # What an exporter can't see in a number that data decide.
        torch._check(num_frames >= 2)
        frames = regulate(self.bridge(encoded), durations, num_frames)
        return SpeechPlan(frames, frame_lengths, durations, pitch, text.lengths)

    def spectrogram(self, plan: SpeechPlan, noise: Tensor | None, controls: Controls) -> SpokenSymbols:
        """Return the spectrogram of a plan, and the plan, which may end earlier. Flow matching begins with ``noise``.

        ``noise`` has the shape of the spectrogram, which keeps all frames of the plan.
        """
        mask = plan.mask
        if noise is None:
            decoded = self.decoder(plan.frames, mask=mask)
            mel = self.mel(decoded)
            plan = plan if self.stop is None else ended(plan, self.stop(decoded)[..., 0])
        else:
            mel = integrate(
                lambda x, times: self.decoder(x, times, plan.frames, mask),
                noise,
                controls.num_steps,
                controls.method,
                controls.temperature,
            )
        return SpokenSymbols(exact(mel) * self.mel_deviation + self.mel_mean, plan)


def ended(plan: SpeechPlan, stop: Tensor) -> SpeechPlan:
    """The plan up to the first frame of the last pause of which ``stop`` ``(row, frame)`` says that it is the last.

    ``stop`` are logits. Only the pause is shortened: no phoneme is ever cut off, whatever they say.
    """
    last = (plan.symbol_lengths - 1)[:, None]
    pause = plan.durations.gather(1, last)
    places = torch.arange(stop.shape[1], device=stop.device)
    lengths = plan.frame_lengths[:, None]
    is_end = (stop > 0) & (places >= lengths - pause) & (places > 0)
    shorter = torch.where(is_end, places + 1, lengths).amin(1, keepdim=True).minimum(lengths)
    durations = plan.durations.scatter_add(1, last, shorter - lengths)
    return replace(plan, frame_lengths=shorter[:, 0], durations=durations)


def make_decoder(config: TtsModelConfig, num_bins: int) -> nn.Module:
    """Return the stack or the field that makes frames of ``num_bins``."""
    if not config.matches_flows:
        return make_stack(config.decoder, causal=False, section="model.decoder")
    flow, condition_width = config.flow_matching, config.encoder.d_model
    if flow.vector_field == "transformer":
        return TransformerField(config.decoder, num_bins, condition_width)
    sizes = (flow.width, flow.num_levels, flow.blocks_per_level, flow.kernel_size)
    return UNetField(num_bins, condition_width, *sizes)

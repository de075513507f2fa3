"""The acoustic model: symbols in, a mel spectrogram out, all frames at once.

    symbols ──embedding (+ speaker)──▶ encoder ──┬──▶ duration predictor ──▶ log(1 + frames) of each symbol
                                                 └──▶ length regulator ──▶ decoder ──┬──▶ mel
                                                            ▲                        └──▶ stop
    training: durations of an alignment ────────────────────┤
              or of the one that the model learns           ┘

Sources: Ren et al. 2021, "FastSpeech 2" (encoder, predictor, regulator, decoder); Badlani et al. 2021, "One TTS
Alignment To Rule Them All" (learned durations). Differs: blocks are those of the model factory; a stop head, as the
English TTS trainer has it, says where speech ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.initialisation import initialise
from vaak.nn.kernels.squared_norms import SquaredNorms
from vaak.nn.speech.aligner import SoftAligner, beta_binomial_prior
from vaak.nn.speech.alignment import monotonic_alignment
from vaak.nn.speech.durations import regulate, whole_durations
from vaak.nn.speech.masks import exact, length_mask
from vaak.nn.speech.predictors import SymbolPredictor, frames_of
from vaak.nn.stack import TransformerStack
from vaak.tasks.tts.config import TtsModelConfig
from vaak.tasks.tts.utterances.normalisation import Normalisation


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


@dataclass(frozen=True)
class Outputs:
    """What the model makes of a batch; mel is normalised."""

    mel: Tensor
    """``(row, frame, bin)``."""
    stop: Tensor
    """``(row, frame)``: logits of the end of speech."""
    log_durations: Tensor
    """``(row, symbol)``: predictions of log(1 + frames)."""
    durations: Tensor
    """``(row, symbol)``: the frames of each symbol that the decoder has read."""
    alignment: Tensor | None = None
    """``(row, frame, symbol)``: log-probabilities of the learned alignment."""


@dataclass(frozen=True)
class Spoken:
    """Mel spectrograms of texts ``(row, frame, bin)``, as in the data, with the ``(row, symbol)`` durations."""

    mel: Tensor
    frame_lengths: Tensor
    durations: Tensor


class TtsModel(nn.Module):
    """Predicts the mel spectrogram of a text."""

    mel_mean: Tensor
    mel_deviation: Tensor

    def __init__(self, config: TtsModelConfig, inventory: Inventory, normalisation: Normalisation) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.config = config
        width, num_bins = config.encoder.d_model, len(normalisation.mel_mean)
        self.embedding = nn.Embedding(inventory.num_symbols, width, padding_idx=inventory.pad_id)
        several = config.speaker_embedding and inventory.num_speakers > 1
        self.speakers = nn.Embedding(inventory.num_speakers, width) if several else None
        self.dropout = nn.Dropout(config.encoder.dropout)
        self.encoder = TransformerStack(config.encoder, causal=False)
        self.duration_predictor = SymbolPredictor(width, **config.duration_predictor.model_dump())
        self.aligner = SoftAligner(width, num_bins) if config.durations == "learned" else None
        same = width == config.decoder.d_model
        self.bridge = nn.Identity() if same else nn.Linear(width, config.decoder.d_model)
        self.decoder = TransformerStack(config.decoder, causal=False)
        self.mel = nn.Linear(config.decoder.d_model, num_bins)
        self.stop = nn.Linear(config.decoder.d_model, 1)
        self.register_buffer("mel_mean", torch.tensor(normalisation.mel_mean))
        self.register_buffer("mel_deviation", torch.tensor(normalisation.mel_deviation))
        initialise(self)

    def forward(
        self,
        text: Text,
        mel: Tensor,
        frame_lengths: Tensor,
        durations: Tensor | None = None,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
    ) -> Outputs:
        """What training needs, with the true durations or, without any, those of the learned alignment.

        ``durations`` of the symbols of ``text`` are ``(row, symbol)``, ``mel`` ``(row, frame, bin)`` is normalised,
        ``frame_lengths`` are ``(row,)``.
        ``norms`` tally what enters feature maps, of symbols and of frames.
        """
        symbol_mask, frame_mask = text.mask, length_mask(frame_lengths, mel.shape[1])
        embedded = self.embedded(text)
        alignment = None
        if self.aligner is not None:
            prior = beta_binomial_prior(frame_lengths, text.lengths).to(mel.dtype)
            padding = symbol_mask.shape[1] - prior.shape[2], frame_mask.shape[1] - prior.shape[1]
            prior = F.pad(prior, (0, padding[0], 0, padding[1]))  # a piece of a batch may be padded more than it needs
            alignment = self.aligner(embedded, mel, symbol_mask, frame_mask, prior)
            durations = monotonic_alignment(alignment, frame_lengths, text.lengths)
        assert durations is not None
        of_symbols, of_frames = norms or (None, None)
        encoded = self.encoder(self.dropout(embedded), mask=symbol_mask, norms=of_symbols and (of_symbols, of_symbols))
        log_durations = self.duration_predictor(encoded, symbol_mask)[..., 0]
        decoded = self.decoded(encoded, durations, frame_mask, of_frames)
        return Outputs(self.mel(decoded), self.stop(decoded)[..., 0], log_durations, durations, alignment)

    def embedded(self, text: Text) -> Tensor:
        """``(row, symbol, width)``."""
        embedded: Tensor = self.embedding(text.symbols)
        return embedded if self.speakers is None else embedded + self.speakers(text.speakers)[:, None]

    def decoded(
        self, encoded: Tensor, durations: Tensor, frame_mask: Tensor, norms: SquaredNorms | None = None
    ) -> Tensor:
        """``(row, frame, width)`` of what symbols ``(row, symbol, width)`` become for their ``durations``."""
        frames = regulate(self.bridge(encoded), durations, frame_mask.shape[1])
        decoded: Tensor = self.decoder(frames, mask=frame_mask, norms=norms and (norms, norms))
        return decoded

    def normalised(self, mel: Tensor) -> Tensor:
        """A mel spectrogram of the data, with mean 0 and deviation 1 in each bin."""
        return (mel - self.mel_mean) / self.mel_deviation

    @torch.inference_mode()
    def speak(self, text: Text, speed: float = 1.0) -> Spoken:
        """The mel spectrograms of texts, in predicted durations divided by ``speed``."""
        symbol_mask = text.mask
        encoded = self.encoder(self.embedded(text), mask=symbol_mask)
        predicted = frames_of(self.duration_predictor(encoded, symbol_mask)[..., 0])
        durations = whole_durations(predicted, symbol_mask, speed, minimum=0.0)
        durations[:, 0] += (2 - durations.sum(1)).clamp(min=0)  # audio is what is between two frames
        frame_lengths = durations.sum(1)
        decoded = self.decoded(encoded, durations, length_mask(frame_lengths))
        mel = exact(self.mel(decoded)) * self.mel_deviation + self.mel_mean
        return Spoken(mel, frame_lengths, durations)

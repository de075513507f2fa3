"""Utterances of a CTC model: which fit its frames, and the tokens of a base, or new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.tasks.asr.config import SCRATCH
from vaak.tasks.asr.ctc.data import FrameFeatures
from vaak.tasks.asr.ctc.pretrained import keep_base, own_vocabulary, waveforms_of
from vaak.tasks.asr.export import exported_vocabulary
from vaak.tasks.asr.prepare import BASE, AsrSources
from vaak.tasks.asr.utterances import TokenLimit
from vaak.tasks.asr.whisper import SpecialIds, Vocabulary, base_of
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory


class CtcSources(AsrSources):
    """Everything that utterances are made of, and their features, which decide what fits."""

    @property
    def tokenizer(self) -> TokenizerFactory:
        """The maker of tokens that a base doesn't bring."""
        return TokenizerFactory(self.data.tokenizer, self.folder)

    def features(self, folder: Path) -> FrameFeatures:
        """Return what the model reads; ``folder`` has the sizes of the base."""
        if self.model.base != SCRATCH:
            return waveforms_of(folder / BASE, self.data.max_duration)
        return FrameFeatures(self.audio, self.data.max_duration, self.model.conformer.subsampling)

    def vocabulary_of(self, tokenizer: Tokenizer) -> Vocabulary:
        """Return the vocabulary of a tokenizer; its special tokens are never said, and padding is the blank."""
        blank, special = tokenizer.pad_id, {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id}
        ids = SpecialIds((blank,), tokenizer.eos_id, blank, tokenizer.vocab_size, tuple(sorted(special)))
        return Vocabulary(tokenizer.to_json(), ids)

    def base_vocabulary(self, folder: Path) -> Vocabulary | None:
        if self.model.base == SCRATCH:
            return None
        keep_base(base_of(self.model, self.folder), folder / BASE, self.model.adapter)
        return self.own_tokens()

    def own_tokens(self) -> Vocabulary | None:
        """Return those that the base brings; None where it has none."""
        source = base_of(self.model, self.folder)
        if self.model.adapter is not None:
            return own_vocabulary(source, self.model.adapter)
        return exported_vocabulary(Path(source)) or own_vocabulary(source)

    def token_limit(self, vocabulary: Vocabulary, folder: Path) -> TokenLimit:
        return self.features(folder).limit()

    def data_options(self) -> dict[str, Any]:
        framing = {"channels", "sampling_rate", "frame_shift", "frame_length", "snip_edges"}
        options = {
            **super().data_options(),
            "architecture": "ctc",
            "audio": self.audio.model_dump(mode="json", include=framing),
            "subsampling": self.model.conformer.subsampling,
        }
        if self.model.adapter is not None:
            options["adapter"] = self.model.adapter
        del options["max_target_length"]
        return options

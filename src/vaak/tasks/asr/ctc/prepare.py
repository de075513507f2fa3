"""Utterances of a CTC model: which fit its frames, and the tokens of a base, or new ones.

A base is transformers' (pretrained.py), or the Conformer of a run. Of that, ``base/config.json`` has the options of the
network and of its features, and sizes by the names that transformers has for them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.config import AudioConfig
from vaak.config.load import load
from vaak.config.trust import is_trusted_place
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, write_json
from vaak.nn.config import ConformerConfig
from vaak.runs.prepared import prepared_folder
from vaak.tasks.asr.config import CTC, DEFAULTS, SCRATCH
from vaak.tasks.asr.ctc.data import FrameFeatures
from vaak.tasks.asr.ctc.pretrained import keep_base, load_features, own_vocabulary
from vaak.tasks.asr.ctc.spelling import adapt
from vaak.tasks.asr.export import exported_vocabulary
from vaak.tasks.asr.model import BASE_KEY, find_run, resolve_base
from vaak.tasks.asr.prepare import BASE, READING_OPTIONS, VOCABULARY, AsrSources
from vaak.tasks.asr.utterances import TokenLimit
from vaak.tasks.asr.vocabulary import SpecialIds, Vocabulary
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

log = logging.getLogger("vaak")
NOT_GIVEN = (TokenizerConfig(), TokenizerConfig(**DEFAULTS["data"]["tokenizer"]))
"""The defaults of ``data.tokenizer``, in Python and in a file."""


class OwnEncoder(NamedTuple):
    """The options of a Conformer and of the features that it reads."""

    conformer: ConformerConfig
    audio: AudioConfig

    @classmethod
    def read(cls, about: dict[str, Any]) -> OwnEncoder | None:
        """Parse ``about``, the content of ``base/config.json``; None if that is transformers'."""
        if "conformer" not in about:
            return None
        return cls(ConformerConfig(**about["conformer"]), AudioConfig(**about["audio"]))


def about_run(run: Path) -> dict[str, Any]:
    """Return the content of ``base/config.json`` for a run's Conformer. Raises UserError for another model."""
    experiment: Any = load([run / "config.yml"], trust_code=is_trusted_place(run)).experiment
    other = f"{BASE_KEY}: {run} is a run of {experiment.task}"
    if experiment.task != "asr" or experiment.model.architecture != CTC:
        raise UserError(f"{other}; architecture ctc takes one that trained a Conformer (model.architecture: ctc)")
    model, found = experiment.model, OwnEncoder(experiment.model.conformer, experiment.global_config)
    if model.base != SCRATCH:
        kept = OwnEncoder.read(read_json(prepared_folder(run) / BASE / "config.json"))
        if kept is None:
            raise UserError(f"{other} on {model.base}; give the folder of its vaak export --format hf")
        found = kept
    if model.experts is not None or found.conformer.is_own:
        raise UserError(f"{other} that has experts, or a network of your own; begin by training.checkpoint.init_from")
    conformer = found.conformer
    return {
        "model_type": "conformer",
        "conformer": conformer.model_dump(mode="json"),
        "audio": found.audio.model_dump(mode="json", exclude=set(READING_OPTIONS)),
        "hidden_size": conformer.d_model,
        "num_hidden_layers": conformer.num_layers,
        "intermediate_size": conformer.d_ff or 4 * conformer.d_model,
        "vocab_size": Vocabulary.load(prepared_folder(run) / VOCABULARY).ids.size,
    }


class CtcSources(AsrSources):
    """Everything that utterances are made of, and their features, which decide what fits."""

    @property
    def tokenizer(self) -> TokenizerFactory:
        """The maker of tokens that a base doesn't bring."""
        return TokenizerFactory(self.data.tokenizer, self.folder)

    def own_encoder(self, folder: Path) -> OwnEncoder | None:
        """Return the Conformer to train; None for a base of transformers, whose files are in ``folder``."""
        if self.model.base == SCRATCH:
            return OwnEncoder(self.model.conformer, self.audio)
        return OwnEncoder.read(read_json(folder / BASE / "config.json"))

    def features(self, folder: Path) -> FrameFeatures:
        """Return the features that the model reads; the base's files are in ``folder``."""
        own = self.own_encoder(folder)
        if own is None:
            return load_features(folder / BASE, self.data.max_duration)
        return FrameFeatures(own.audio, self.data.max_duration, own.conformer.subsampling)

    def make_vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """Return the vocabulary of a tokenizer; its special tokens are never said, and padding is the blank."""
        blank, special = tokenizer.pad_id, {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id}
        ids = SpecialIds((blank,), tokenizer.eos_id, blank, tokenizer.vocab_size, tuple(sorted(special)))
        return Vocabulary(tokenizer.to_json(), ids)

    def base_vocabulary(self, folder: Path) -> Vocabulary | None:
        if self.model.base == SCRATCH:
            return None
        if (run := find_run(self.model.base, self.folder)) is not None:
            if self.model.adapter is not None:
                raise UserError(f"model.adapter: {run} has no adapters by language, as MMS has")
            if self.has_given_tokens:
                raise UserError(
                    f"data.tokenizer.path: {run} is a run, whose tokens are used; leave it out, or begin by "
                    "training.checkpoint.init_from, which takes rows of tokens by their names"
                )
            (folder / BASE).mkdir()
            write_json(folder / BASE / "config.json", about_run(run))
        else:
            source = resolve_base(self.model, self.folder)
            keep_base(source, folder / BASE, self.model.adapter, keeps_tokens=not self.has_given_tokens)
        found = self.own_tokens()
        if found is not None and self.data.tokenizer not in NOT_GIVEN:
            log.warning(
                "data.tokenizer: the tokens of %s are used; data.tokenizer.path, a tokenizer, would "
                "replace them and its output layer",
                self.model.base,
            )
        return found

    @property
    def has_given_tokens(self) -> bool:
        """Whether the tokens are those of a file, also where a base has others."""
        return self.model.base != SCRATCH and self.data.tokenizer.path is not None

    def own_tokens(self) -> Vocabulary | None:
        """Return the base's vocabulary; None if it has none, or others are given."""
        if self.has_given_tokens:
            return None
        if (run := find_run(self.model.base, self.folder)) is not None:
            return Vocabulary.load(prepared_folder(run) / VOCABULARY)
        source = resolve_base(self.model, self.folder)
        if self.model.adapter is not None:
            return own_vocabulary(source, self.model.adapter)
        return exported_vocabulary(Path(source)) or own_vocabulary(source)

    def adapted(self, vocabulary: Vocabulary, texts: Callable[[], Iterable[str]]) -> Vocabulary:
        return adapt(vocabulary, texts, self.model.base) if self.is_of_characters(vocabulary) else vocabulary

    def is_of_characters(self, vocabulary: Vocabulary) -> bool:
        """Return whether each token is a character, as in transformers' bases."""
        return bool(json.loads(vocabulary.content)["model"]["type"] == "WordLevel")

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

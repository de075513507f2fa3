"""Speech recognition by a Whisper.

- ``prepare``: corpora as utterances, and the vocabulary of transcripts, once (../prepare.py)
- ``dataset``: Whisper's features and tokens of transcripts (data.py)
- ``losses``: cross-entropy of each token given the audio and the true tokens before it; per token
- ``count_choices``: the first pass, which balancing a mixture's experts by a loss needs
- ``meters``: loss and accuracy, WER and CER in total and by group (metrics.py, ../metrics.py)
- ``predict``: audio files as transcripts (predict.py)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Outputs as TaskOutputs
from vaak.data.batching import largest_rows
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.losses import losses_of_logits
from vaak.nn.new_tokens import get_stored_weight
from vaak.runs.prepared import Recipe
from vaak.tasks.asr.checks import ONLY_WHISPERS
from vaak.tasks.asr.config import CONTEXT_SECONDS, SCRATCH, AsrDecodingConfig
from vaak.tasks.asr.data import AsrExample
from vaak.tasks.asr.model import find_frozen, name_base, resolve_base
from vaak.tasks.asr.prepare import ALIGNMENT_HEADS, AsrSources, PreparedUtterances, recipe
from vaak.tasks.asr.task import GATE_INPUT, SpeechRecognitionTask
from vaak.tasks.asr.vocabulary import Vocabulary, make_unnamed_ids
from vaak.tasks.asr.whisper.data import Timing, WhisperDataset, collate
from vaak.tasks.asr.whisper.export import (
    make_files_of_new_tokens,
    write_adapter,
    write_mixture,
    write_mixture_onnx,
    write_whisper,
    write_whisper_ct2,
)
from vaak.tasks.asr.whisper.features import WhisperFeatures, WhisperSamples
from vaak.tasks.asr.whisper.metrics import WhisperMeters
from vaak.tasks.asr.whisper.model import AsrModel, AsrOutputs, Encoded
from vaak.tasks.asr.whisper.network import (
    config_before,
    count_positions,
    loaded_whisper,
    random_whisper,
    scratch_config,
    seconds_read,
)
from vaak.tasks.asr.whisper.predict import WhisperTranscriber, require_decoding
from vaak.tasks.asr.whisper.sherpa import write_whisper_sherpa
from vaak.tasks.base import RehearsedTexts
from vaak.tasks.kept_base import read_new_tokens
from vaak.tasks.pretrained import load_or_init
from vaak.tasks.speech_task import Datasets

log = logging.getLogger("vaak")


class WhisperTask(SpeechRecognitionTask):
    """Trains a Whisper model to transcribe speech; experiments with ``model.architecture: ctc`` are of ``CtcTask``."""

    OF_BEAMS = (*SpeechRecognitionTask.OF_BEAMS, "length_penalty", "early_stopping")

    # Data.

    def prepare_base(self) -> None:
        super().prepare_base()
        known, told = self.prepared.vocabulary.languages, "language" in self.data.model_fields_set
        if known and not told and self.data.decoding.language is None:
            what = f"knows {len(known)} languages, and takes recordings for {self.data.language}"
            log.warning("%s %s: --language (data.language) says which they are, or auto", self.options.base, what)

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedUtterances | None = None
    ) -> Recipe:
        return recipe(AsrSources.of(self.experiment, datasets, self.folder), splits, own)

    def make_dataset(self, split: str) -> WhisperDataset:
        found = self.make_utterance_dataset(WhisperDataset, split)
        if self.options.base == SCRATCH:
            found.max_target_positions = self.options.scratch.max_target_length
        else:
            found.max_target_positions = self.prepared.base_config.max_target_positions
        if split == "train" and self.data.timestamps:
            if not self.prepared.vocabulary.times:
                raise UserError("data.timestamps: the base has no tokens for times")
            # A text with times is read without <|notimestamps|>, the last token of the prompt.
            prompt = len(self.prepared.vocabulary.ids.prompt) - 1
            found.timing = Timing(self.data.timestamps, found.max_target_positions - prompt)
        return found

    @property
    def features(self) -> WhisperFeatures:
        """The features that the model reads."""
        scratch = self.options.base == SCRATCH
        num_bins = self.audio.num_mel_bins if scratch else self.prepared.base_config.num_mel_bins
        return WhisperFeatures(num_bins, self.window)

    @property
    def window(self) -> float:
        """Seconds that the encoder reads at once. Raises UserError where utterances may be longer."""
        if self.options.base == SCRATCH:
            return self.data.max_duration
        seconds = self.options.window or seconds_read(self.prepared.base_config)
        if self.data.max_duration > seconds:
            raise UserError(f"data.max_duration: {self.options.base} reads at most {seconds:g} s")
        return seconds

    @cached_property
    def feature_maker(self) -> WhisperSamples:
        """The samples of which a device makes features."""
        return WhisperSamples(self.features.num_mel_bins, self.features.seconds)

    # Training.

    def meta_model(self, fetches: bool = False) -> AsrModel | None:
        config = config_before(self.experiment, self.folder, fetches)
        return None if config is None else AsrModel(random_whisper(config), self.options.lora, self.options.experts)

    def meta_batch(self) -> Batch | None:
        """Return a microbatch of silence, as large as one may become; None for a base of the Hub."""
        config = config_before(self.experiment, self.folder)
        if config is None:
            return None
        seconds = seconds_read(config)
        features = np.zeros((config.num_mel_bins, 2 * config.max_source_positions), np.float32)
        example = AsrExample("sketch", "", "all", features, np.ones(config.max_target_positions - 1, np.int64), True)
        rows = largest_rows(self.experiment.training, seconds)
        return collate([example] * rows, Vocabulary("", make_unnamed_ids(2)), features.shape[1])

    def model(self) -> AsrModel:
        """Return the base, with adapters or experts.

        Where a run has checkpoints, which have all weights, its base may have gone.
        """
        options, seconds = self.options, self.window
        require_decoding(self.prepared.vocabulary, self.data.decoding)
        self.report_hotwords()
        if options.base == SCRATCH:
            ids = self.prepared.vocabulary.ids
            whisper = random_whisper(scratch_config(options.scratch, ids, self.audio.num_mel_bins, seconds))
            return AsrModel(whisper)

        def random() -> Any:
            config = self.prepared.base_config
            # The saved sizes are the base's, and don't know of model.window.
            config.max_source_positions = count_positions(seconds)
            config.vocab_size = self.prepared.vocabulary.ids.size
            return random_whisper(config)

        new, frozen = read_new_tokens(self.prepared.folder), find_frozen(options, self.prepared.folder)
        whisper = load_or_init(
            self.directory,
            lambda: loaded_whisper(resolve_base(options, self.folder), options.window, new, frozen),
            random,
        )
        return AsrModel(whisper, options.lora, options.experts, new.ids)

    @property
    def states_shape(self) -> tuple[int, int]:
        return self.features.num_frames // 2, self.prepared.base_config.d_model

    def compute_states(self, model: nn.Module, features: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
        rows = torch.from_numpy(np.stack(features)).to(next(model.parameters()).device)
        return cast("AsrModel", model).encode(rows).states, None

    def _outputs(self, model: nn.Module, batch: Batch, **options: bool) -> AsrOutputs:
        outputs: AsrOutputs = model(
            self.compute_features(batch), batch["inputs"], batch.tensors.get(GATE_INPUT), **options
        )
        return outputs

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        outputs = self._outputs(model, batch, **self.main_loss.model_options(model, batch["targets"]))
        auxiliary, encoded = self.experiment.training.loss.auxiliary, outputs.encoded
        terms = losses_of_logits(self.main_loss, auxiliary, outputs.logits, batch["targets"], per="token")
        return terms | self.routing_terms(encoded.gate, encoded.weights, batch)

    def row_names(self) -> dict[str, Sequence[str]]:
        return {"tokens": self.prepared.vocabulary.tokens()}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        whisper = cast("AsrModel", model).whisper
        for part in (whisper.get_input_embeddings(), whisper.get_output_embeddings()):
            yield get_stored_weight(part), "tokens"

    def outputs(self) -> TaskOutputs:
        vocabulary, features = self.prepared.vocabulary, self.features
        ids = asdict(vocabulary.ids)
        reading = compute_fingerprint([vocabulary.content, ids, features.num_mel_bins, features.seconds])
        return TaskOutputs({"token": vocabulary.tokens()}, "token", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = self._outputs(model, batch).logits
        assert isinstance(logits, Tensor)
        return {"token": logits[batch["targets"] != IGNORED]}

    def protocol(self, split: str) -> dict[str, str]:
        decoding = self.data.decoding
        values = {name: getattr(decoding, name) for name in ONLY_WHISPERS}
        differs = {
            name: str(value) for name, value in values.items() if value != type(decoding).model_fields[name].default
        }
        return super().protocol(split) | differs

    def meters(self, split: str) -> WhisperMeters:
        def transcribe(model: AsrModel, encoded: Encoded, rehearsed: Tensor | None = None) -> list[str]:
            if rehearsed is None:
                return self.transcriber(model).decode_texts(encoded)
            most = model.max_target_length
            bound = RehearsedTexts.of_targets(split, rehearsed, min(self.data.decoding.max_new_tokens or most, most))
            texts, ended = self.transcriber(model, max_new_tokens=bound.longest).texts_and_ends(encoded)
            bound.report(ended)
            return texts

        groups = self.dataset(split).utterances.group_names
        return WhisperMeters(
            self.protocol(split),
            self.normalise,
            transcribe,
            groups,
            audio=self.dataset(split).list_audio(),
            compute_features=self.compute_features,
        )

    # Use.

    def transcriber(self, model: nn.Module, **options: Any) -> WhisperTranscriber:
        """Return the model with what it reads and writes; ``options`` override those of ``data.decoding``."""
        decoding = AsrDecodingConfig(**{**self.data.decoding.model_dump(), **options})
        vocabulary = self.prepared.vocabulary
        decoding = require_decoding(vocabulary, decoding)
        heads = () if self.options.base == SCRATCH else getattr(self.prepared.base_config, ALIGNMENT_HEADS, None) or ()
        # a GPU makes the features of a batch in less time than a processor those of one recording
        features = self.feature_maker if next(model.parameters()).device.type == "cuda" else self.features
        return WhisperTranscriber(
            cast("AsrModel", model), vocabulary, features, decoding, self.audio.channels, tuple(map(tuple, heads))
        )

    def export_hf(self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0) -> None:
        """Write a Whisper that transformers loads, low-rank adapters merged; of experts, one, times its ``weight``."""
        write_whisper(self.transcriber(model), folder, expert, weight)

    def export_ct2(
        self,
        model: nn.Module,
        folder: Path,
        expert: int | None = None,
        weight: float = 1.0,
        quantization: str | None = None,
    ) -> None:
        """Write a Whisper that faster-whisper and CTranslate2 load, as ``export_hf`` does."""
        write_whisper_ct2(self.transcriber(model), folder, expert, weight, quantization)

    def export_sherpa_onnx(self, model: nn.Module, folder: Path, quantization: str | None = None) -> None:
        """Write a Whisper that sherpa-onnx loads, low-rank adapters merged."""
        write_whisper_sherpa(self.transcriber(model), folder, quantization)

    def export_peft(
        self, model: nn.Module, folder: Path, expert: int | None = None, weight: float = 1.0, base: str | None = None
    ) -> None:
        options = self.options.model_copy(update={"base": base or name_base(self.options.base, self.folder)})
        files = make_files_of_new_tokens(self.transcriber(model), options.base, folder)
        write_adapter(cast("AsrModel", model), options, folder, expert, weight, files)

    def export_mixture(self, model: nn.Module, folder: Path) -> None:
        """Write gate and experts as one thing, which a loader of a few lines puts on the base in transformers."""
        base = name_base(self.options.base, self.folder)
        write_mixture(cast("AsrModel", model), self.prepared.vocabulary, base, folder)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write the encoder and the decoder of a mixture, gate and base in them, for onnxruntime."""
        base = name_base(self.options.base, self.folder)
        write_mixture_onnx(cast("AsrModel", model), self.prepared.vocabulary, base, folder)

    def refused_endpoints(self) -> dict[str, str]:
        try:
            require_decoding(self.prepared.vocabulary, AsrDecodingConfig(task="translate"))
        except UserError as error:
            return {"translations": str(error)}
        return {}

    def refused_exports(self) -> dict[str, str]:
        reason = "only a mixture of experts (model.experts) is written so"
        reasons = {} if self.options.experts is not None else {"mixture": reason, "onnx": reason}
        if self.options.experts is not None:
            reasons["sherpa-onnx"] = "sherpa-onnx's Whispers have no gate; use onnx, mixture, or hf with --expert"
        window = self.options.window
        if window is not None and window < CONTEXT_SECONDS:
            reasons["ct2"] = f"faster-whisper reads 30 s, and model.window cut this Whisper's positions to {window:g} s"
        if not self.prepared.vocabulary.is_whispers:
            prompt = (
                "begins each text with <|startoftranscript|><|notimestamps|>, which a Whisper with a tokenizer of its "
                "own (model.base: scratch) wasn't trained with"
            )
            reasons |= {"ct2": f"faster-whisper {prompt}", "sherpa-onnx": f"sherpa-onnx {prompt}"}
        return reasons
